"""lm-eval with one of its models, or ours; the arguments are JSON. Prints what each request was answered as JSON."""

import json
import sys

given = json.loads(sys.argv[1])
sys.path.extend(given["paths"])  # after lm-eval's own packages: ours, torch, transformers

import lm_eval  # noqa: E402
import lm_eval.models  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

if given["model"] == "lmdeploy":
    import lmdeploy.evaluation.lm_eval_model  # noqa: F401 - registers the model

found = lm_eval.simple_evaluate(
    model=given["model"],
    model_args=given["model_args"],
    tasks=given["tasks"],
    device="cpu",
    batch_size=1,
    apply_chat_template=given["chat"],
    task_manager=TaskManager(include_path="tests/data/lm_eval"),
)
texts = {
    task: [[response[0] for response in sample["resps"]] for sample in sorted(samples, key=lambda one: one["doc_id"])]
    for task, samples in found["samples"].items()
}
print(json.dumps({"said": texts, "results": found["results"]}, default=str))
