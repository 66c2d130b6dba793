"""Where LMDeploy's manual imports the step from."""

from lmdeploy.pytorch.step_context import StepContext, StepContextManager

__all__ = ["StepContext", "StepContextManager"]
