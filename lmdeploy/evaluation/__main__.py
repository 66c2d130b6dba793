"""lm-eval's command line, with the model ``lmdeploy``: ``python -m lmdeploy.evaluation run --model lmdeploy ...``."""

import sys


def main() -> None:
    """Register the model and hand over."""
    try:
        import lm_eval.models  # noqa: F401 - registers lm-eval's own models
        from lm_eval.__main__ import cli_evaluate
    except ImportError as error:
        sys.exit(f"lm-eval cannot be imported ({error}); run: pip install lm-eval")
    import lmdeploy.evaluation.lm_eval_model  # noqa: F401 - registers the model

    cli_evaluate()


if __name__ == "__main__":
    main()
