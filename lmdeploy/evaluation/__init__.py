"""Pipelines as the models of evaluation harnesses.

``python -m lmdeploy.evaluation run --model lmdeploy ...`` is lm-eval's command line with the model ``lmdeploy``;
:mod:`lmdeploy.evaluation.opencompass` has the class for OpenCompass's config files. Neither harness is needed by
anything else, nor imported before it is used.
"""
