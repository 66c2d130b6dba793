"""Import path of the step context in LMDeploy's manual."""

from lmdeploy.pytorch.step_context import StepContext, StepContextManager

__all__ = ["StepContext", "StepContextManager"]
