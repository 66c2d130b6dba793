"""Heads of checkpoints draft what their published form computes, and no draft changes a response."""

import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lmdeploy import GenerationConfig
from lmdeploy.offline.async_engine import AsyncEngine
from lmdeploy.turbomind.engine_dir import resolve
from lmdeploy.turbomind.heads.checkpoints import eagle_head
from lmdeploy.turbomind.heads.directory import find_head
from lmdeploy.turbomind.safetensors_index import read_checkpoint
from lmdeploy.turbomind.spec import ModelSpec
from tests.engine.test_speculative_decoding import PROMPTS, drafted, engine, trace
from tests.kernels.device import built_modules, host_module, load_module
from tests.support import heads
from tests.support.tiny_models import make_tiny_llama
from tests.support.token_engine import TokenEngine

HIDDEN, VOCAB, DRAFTED = 32, 2048, 500
ONLY_HEADS = {"prompt_lookup_min": 64, "prompt_lookup_max": 64, "shared_tokens": 0, "adaptive": False}


@dataclasses.dataclass
class Case:
    """A model, what ``speculative_config`` says of its head, and what that computes."""

    model: Path
    config: dict[str, Any]
    reference: heads.Reference
    width: int  # of what it takes alongside a token

    @property
    def head(self) -> Path:
        """The head's engine directory."""
        target = resolve(str(self.model), backend="turbomind").path
        return find_head(target, self.config["method"], self.config.get("model", ""))


def llama(folder: Path) -> tuple[Path, torch.Tensor]:
    """Return a model of six layers, and its embedding, which is its output layer."""
    model = make_tiny_llama(folder / "model", num_hidden_layers=6)
    return model, heads.weights_of(model)["model.embed_tokens.weight"]


def eagle(folder: Path) -> Case:
    model, embedding = llama(folder)
    tensors = heads.eagle_tensors(HIDDEN, layers=2, bias=True)
    head = heads.write_head(folder / "head", tensors, hidden_size=HIDDEN, num_hidden_layers=2, vocab_size=VOCAB)
    return Case(
        model, {"method": "eagle", "model": str(head)}, heads.eagle_reference(tensors, embedding, embedding), HIDDEN
    )


def eagle3(folder: Path) -> Case:
    model, embedding = llama(folder)
    tensors = heads.eagle3_tensors(HIDDEN, VOCAB, DRAFTED)
    head = heads.write_head(folder / "head", tensors, hidden_size=HIDDEN, num_hidden_layers=1, vocab_size=VOCAB)
    return Case(model, {"method": "eagle3", "model": str(head)}, heads.eagle3_reference(tensors, embedding), 3 * HIDDEN)


def mtp(folder: Path) -> Case:
    model = heads.make_tiny_deepseek_mtp(folder / "model")
    return Case(model, {"method": "mtp"}, heads.mtp_reference(model, folder / "reference"), HIDDEN)


def qwen_mtp(folder: Path) -> Case:
    model = heads.make_tiny_qwen_mtp(folder / "model", "Qwen3.5")
    return Case(model, {"method": "mtp"}, heads.qwen_mtp_reference(model), HIDDEN)


LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize(
    ("layers", "config", "read"),
    [
        (61, {"eagle_config": {LAYER_IDS: [1, 29, 57], "use_aux_hidden_state": True}}, (2, 30, 58)),  # DeepSeek-V3's
        (24, {"eagle_config": {LAYER_IDS: [1, 11, 21]}}, (2, 12, 22)),  # of gpt-oss 20B
        (36, {LAYER_IDS: [2, 18, 33]}, (2, 18, 33)),  # as the package speculators writes them
        (36, {}, (2, 18, 33)),
    ],
)
def test_an_eagle3_head_reads_the_layers_that_its_config_names(
    layers: int, config: dict[str, Any], read: tuple[int, ...], tmp_path: Path
) -> None:
    spec = ModelSpec.from_json((resolve(str(llama(tmp_path)[0]), backend="turbomind").path / "spec.json").read_text())
    tensors = heads.eagle3_tensors(HIDDEN, VOCAB, DRAFTED)
    head = heads.write_head(
        tmp_path / "head", tensors, hidden_size=HIDDEN, num_hidden_layers=1, vocab_size=VOCAB, **config
    )
    target = dataclasses.replace(spec, num_layers=layers)
    found = eagle_head(target, head, read_checkpoint(head), "eagle3").spec.head
    assert found is not None
    assert found.target_layers == read


@pytest.fixture(scope="module", params=[eagle, eagle3, mtp, qwen_mtp])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    torch.manual_seed(11)
    made: Callable[[Path], Case] = request.param
    return made(tmp_path_factory.mktemp("head"))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_head_computes_what_its_published_form_does(case: Case, device: str) -> None:
    tokens = torch.randint(VOCAB, (12,))
    given = list(torch.randn(8, case.width))
    if device == "cuda" and "emulated" not in built_modules():
        pytest.skip("CUDA is not emulated in this build: run `make build-tests`")
    head = (host_module() if device == "cpu" else load_module("emulated")).Head(str(case.head), device)
    logits, head_logits = [], []
    # Two chunks of a prompt, then what it takes of itself.
    for begin, end in ((0, 5), (5, 8)):
        got, hidden = head.run(tokens[begin:end].tolist(), torch.stack(given[begin:end]).numpy(), begin, False)
        logits += list(torch.from_numpy(got))
        head_logits += list(torch.from_numpy(hidden))
    for row in range(8, 12):
        got, hidden = head.run([int(tokens[row])], head_logits[-1][None].numpy(), row, True)
        logits += list(torch.from_numpy(got))
        head_logits += list(torch.from_numpy(hidden))
    expected_logits, expected_head_logits = case.reference(tokens, given + head_logits[7:11], 8)
    torch.testing.assert_close(torch.stack(logits), expected_logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.stack(head_logits), expected_head_logits, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def pair(case: Case) -> Iterator[tuple[AsyncEngine, AsyncEngine]]:
    config = ONLY_HEADS | case.config | {"num_speculative_tokens": 3}
    # Few blocks: sequences give theirs back, and prefixes are found.
    fields = {
        "cache_max_entry_count": 12,
        "enable_prefix_caching": True,
        "session_len": 512,
        "num_tokens_per_iter": 24,
        "max_batch_size": 8,
    }
    with engine(case.model, **fields) as baseline, engine(case.model, speculative_config=config, **fields) as drafting:
        yield baseline, drafting


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"do_sample": True, "temperature": 0.8, "random_seed": 5, "n": 2, "repetition_penalty": 1.1},
        {"do_sample": True, "top_k": 20, "stop_words": ["la"], "min_new_tokens": 4, "random_seed": 3},
    ],
)
def test_responses_are_those_without_the_head(pair: tuple[AsyncEngine, AsyncEngine], how: dict[str, Any]) -> None:
    baseline, drafting = pair
    config = GenerationConfig(max_new_tokens=40, ignore_eos=True, logprobs=2, **how)
    prompts = [f"{text} {i}" for text in PROMPTS for i in range(3)]

    def traces(model: AsyncEngine) -> list[Any]:
        responses = model(prompts, config)
        return [
            trace(one) for response in responses for one in (response if isinstance(response, list) else [response])
        ]

    before = drafted(drafting)
    assert traces(drafting) == traces(baseline)
    assert drafted(drafting) > before
    if how.get("n") == 2:
        assert drafting.engine.metrics()["preemptions_total"] > 0


def eagle_that_copies(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return a model without memory, and a head whose layers are the model's after the embedding."""
    model = make_tiny_llama(folder / "model")
    tensors = heads.rewrite_weights(model, heads.without_memory)
    copied = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if ".layers." in name}
    del copied["layers.0.input_layernorm.weight"]
    copied["fc.weight"] = torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], 1)
    head = heads.write_head(folder / "head", copied, hidden_size=HIDDEN, num_hidden_layers=2, vocab_size=VOCAB)
    return model, {"method": "eagle", "model": str(head), "num_speculative_tokens": 4}


def mtp_that_copies(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the same with the model's only layer after it once more; its norm leaves embeddings as they are."""
    model = heads.make_tiny_deepseek_mtp(folder / "model", layers=1, first_k_dense_replace=0)

    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tensors = heads.without_memory(tensors)
        embedding = tensors["model.embed_tokens.weight"]
        embedding = embedding / embedding.pow(2).mean(-1, keepdim=True).sqrt()
        first = {name.replace(".0.", ".1.", 1): t for name, t in tensors.items() if name.startswith("model.layers.0.")}
        return tensors | first | {
            "model.embed_tokens.weight": embedding,
            "model.layers.1.embed_tokens.weight": embedding,
            "model.layers.1.shared_head.head.weight": tensors.get("lm_head.weight", embedding),
            "model.layers.1.eh_proj.weight": torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], 1),
        }  # fmt: skip

    heads.rewrite_weights(model, change)
    return model, {"method": "deepseek_mtp", "num_speculative_tokens": 4}


def eagle3_that_knows(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return a model without memory, and a head whose output layer has memorized which token comes after next.

    It finds that by the hidden state in front of the model's third layer, of the token before: of itself it makes
    nothing, so it knows one token.
    """
    from transformers import AutoModelForCausalLM

    model = make_tiny_llama(folder / "model", num_hidden_layers=6)
    heads.rewrite_weights(model, heads.without_memory)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        seen: list[int] = []
        token = 7
        while token not in seen:
            seen.append(token)
            output = network(torch.tensor([[token]]), output_hidden_states=True)
            token = int(output.logits[0, -1].argmax())
        cycle = seen[seen.index(token) :]
        low = network(torch.tensor(cycle)[:, None], output_hidden_states=True).hidden_states[2][:, 0]
    after_next = [cycle[(i + 2) % len(cycle)] for i in range(len(cycle))]
    order = sorted(range(len(cycle)), key=lambda i: after_next[i])
    known = torch.tensor([after_next[i] for i in order])
    zeros = torch.zeros(HIDDEN, HIDDEN)
    tensors = heads.without_memory(heads.eagle3_tensors(HIDDEN, VOCAB, len(cycle))) | {
        "fc.weight": torch.cat([torch.eye(HIDDEN), zeros, zeros], 1),
        "midlayer.mlp.down_proj.weight": torch.zeros(HIDDEN, 64),
        "lm_head.weight": (low / low.norm(dim=-1, keepdim=True))[order],
        "d2t": known - torch.arange(len(cycle)),
    }
    head = heads.write_head(folder / "head", tensors, hidden_size=HIDDEN, num_hidden_layers=1, vocab_size=VOCAB)
    return model, {"method": "eagle3", "model": str(head), "num_speculative_tokens": 1}


@pytest.mark.parametrize("make", [eagle_that_copies, mtp_that_copies, eagle3_that_knows])
def test_a_head_that_knows_its_model_is_right_each_time(
    make: Callable[[Path], tuple[Path, dict[str, Any]]], tmp_path: Path
) -> None:
    torch.manual_seed(2)
    model, config = make(tmp_path)
    settings = {"speculative_config": ONLY_HEADS | config}
    with TokenEngine(model) as baseline, TokenEngine(model, **settings) as drafting:
        ids = list(range(40, 75))
        ids += baseline.generate(ids, 300, "generation")[
            0
        ]  # after this many, the model says the same ones again and again
        (tokens, logits), (expected, expected_logits) = (
            side.generate(ids, 41, "generation") for side in (drafting, baseline)
        )
        assert tokens == expected
        assert torch.equal(logits, expected_logits)
        measurements, max_drafts = drafting.engine.metrics(), config["num_speculative_tokens"]
        assert (
            measurements["draft_tokens_accepted_total"]
            == measurements["draft_tokens_total"]
            >= 40 * max_drafts // (max_drafts + 1)
        )


def test_the_program_that_the_server_asks_names_the_same_directory(case: Case) -> None:
    arguments = [str(case.head.parent / "none"), case.config["method"], case.config.get("model", "")]
    target = str(resolve(str(case.model), backend="turbomind").path)
    for first, status in ((target, 0), (arguments[0], 1)):
        command = [sys.executable, "-m", "lmdeploy.turbomind.heads", first, *arguments[1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        assert done.stdout.strip() == ("" if status else str(case.head))


def test_what_is_no_head_of_the_model_is_named(tmp_path: Path) -> None:
    model, _ = llama(tmp_path)
    layers = heads.eagle_tensors(HIDDEN)
    sizes = {"hidden_size": HIDDEN, "num_hidden_layers": 1, "vocab_size": VOCAB}
    good = heads.write_head(tmp_path / "good", layers, **sizes)
    quantized = heads.write_head(tmp_path / "quantized", layers, quantization_config={"bits": 4}, **sizes)
    other = heads.write_head(tmp_path / "other", layers | {"medusa.0.weight": torch.zeros(1)}, **sizes)
    wider = heads.write_head(tmp_path / "wide", heads.eagle_tensors(48), **sizes | {"hidden_size": 48})
    rejected: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"method": "mtp"}, {}, "method mtp for LlamaForCausalLM"),
        ({"method": "mtp", "model": str(good)}, {}, "leave model out"),
        ({"method": "eagle"}, {}, "method eagle needs a model"),
        ({"method": "eagle3", "model": str(good)}, {}, "is a head of the method eagle, not eagle3"),
        ({"method": "eagle", "model": str(quantized)}, {}, "a quantized head (quantization_config) is not supported"),
        ({"method": "eagle", "model": str(other)}, {}, "tensor medusa.0.weight is unknown to the method eagle"),
        ({"method": "eagle", "model": str(wider)}, {}, "has hidden_size 48, its model 32, and no embeddings"),
        ({"method": "eagle", "model": str(good)}, {"backend": "pytorch"}, "that the TurboMind engine runs"),
    ]
    for config, fields, problem in rejected:
        with pytest.raises(ValueError, match=re.escape(problem)):
            engine(model, speculative_config=config, **fields)
