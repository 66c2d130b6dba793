"""Metrics of responses: how long they take, how long they are, and how they end."""

from __future__ import annotations

from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Histogram

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.metrics.tally import Tally

_HAND_OVER_SECONDS = 1.0  # other workers of this gateway see metrics no later, while tokens come

# The bounds that dashboards made for vLLM expect.
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_LENGTHS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))

_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort"}
_WHOLE = -1.0  # a response that came at once, because its client did not stream: nobody saw its first token
_LEFT, _FAILED = "abort", "error"


class ResponseMetrics:
    """Histograms and counters of responses, by model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
            return Histogram(f"lmdeploy_gateway_{name}", text, ["model_name"], buckets=bounds, registry=registry)

        self._families = {
            "first_token": histogram(
                "time_to_first_token_seconds", "From a request's head to its first token.", _FIRST_TOKEN
            ),
            "gap": histogram("inter_token_seconds", "From one token of a response to the next.", _TOKEN),
            "mean_gap": histogram(
                "time_per_output_token_seconds", "Between tokens, the mean of each response of two or more.", _TOKEN
            ),
            "latency": histogram("request_latency_seconds", "From a request's head to its last token.", _LATENCY),
            "prompt_tokens": histogram("prompt_tokens", "Tokens of a request's prompt.", _LENGTHS),
            "generation_tokens": histogram("generation_tokens", "Tokens of a response.", _LENGTHS),
        }
        self._ends = Counter(
            "lmdeploy_gateway_responses",
            "Responses that ended; abort: their client left; error: they failed or were refused.",
            ["model_name", "finished_reason"],
            registry=registry,
        )
        self._recovered = Counter(
            "lmdeploy_gateway_tool_calls_recovered",
            "Tool calls that were read although they were not quite as the model's format has them, by how.",
            ["model_name", "kind"],
            registry=registry,
        )
        self._of_models: dict[str, ModelMetrics] = {}

    def of(self, model: str) -> ModelMetrics:
        """Return the metrics of a model, which are zero at first."""
        if (metrics := self._of_models.get(model)) is None:
            metrics = self._of_models[model] = ModelMetrics(self._families, self._ends, model)
        return metrics

    def count_recovered(self, model: str, kind: str) -> None:
        """Count a call that was not quite as its format has it."""
        self._recovered.labels(model, kind).inc()

    def hand_over(self) -> None:
        """Bring what a page is made of up to date."""
        for metrics in self._of_models.values():
            metrics.hand_over()


class ModelMetrics:
    """Counters of one model's responses."""

    def __init__(self, families: dict[str, Histogram], ends: Counter, model: str) -> None:
        self._tallies = {name: Tally(family.labels(model)) for name, family in families.items()}
        self.first_token, self.gap, self.mean_gap = (self._tallies[name] for name in ("first_token", "gap", "mean_gap"))
        self.latency = self._tallies["latency"]
        self.prompt_tokens, self.generation_tokens = self._tallies["prompt_tokens"], self._tallies["generation_tokens"]
        self.ends = {reason: ends.labels(model, reason) for reason in (*_REASONS.values(), _FAILED)}
        self.due = 0.0  # when to hand over, by time.perf_counter

    def hand_over(self) -> None:
        """Move what was tallied into the histograms."""
        for tally in self._tallies.values():
            tally.hand_over()
        self.due = perf_counter() + _HAND_OVER_SECONDS


class Watch:
    """Follows the responses to one prompt."""

    __slots__ = ("_add_gap", "_begin", "_first", "_is_waiting", "_last", "_metrics", "_open", "_tokens")

    def __init__(self, metrics: ModelMetrics, begin: float, choices: int) -> None:
        self._metrics = metrics
        self._add_gap = metrics.gap.add
        self._begin = begin  # when the request came, by ``time.perf_counter``
        self._open = choices
        self._is_waiting = True  # for the first token of any response
        self._tokens = [0] * choices
        self._first, self._last = [0.0] * choices, [0.0] * choices

    def see(self, chunk: GenerateChunk) -> None:
        """Count what has just arrived."""
        now, index, tokens = perf_counter(), chunk.index, chunk.generate_token_len
        before = self._tokens[index]
        if tokens != before:
            if before:
                new = tokens - before
                self._add_gap((now - self._last[index]) / new, new)
            elif tokens == 1 or chunk.finish_reason is None:
                self._begin_response(index, now)
            else:
                self._first[index] = _WHOLE
            self._tokens[index] = tokens
            self._last[index] = now
        if chunk.finish_reason is not None:
            self._finish(chunk, now)
        elif now > self._metrics.due:
            self._metrics.hand_over()

    def left(self) -> None:
        """Count the responses that nobody waits for any more."""
        self._break_off(_LEFT)

    def failed(self) -> None:
        """Count the responses that will not come."""
        self._break_off(_FAILED)

    def _begin_response(self, index: int, now: float) -> None:
        self._first[index] = now
        if self._is_waiting:
            self._metrics.first_token.add(now - self._begin)
            self._is_waiting = False

    def _finish(self, last: GenerateChunk, now: float) -> None:
        metrics, tokens = self._metrics, last.generate_token_len
        metrics.ends[_REASONS.get(last.finish_reason or "", _FAILED)].inc()
        metrics.generation_tokens.add(tokens)
        if tokens > 1 and (first := self._first[last.index]) != _WHOLE:
            metrics.mean_gap.add((self._last[last.index] - first) / (tokens - 1))
        self._open -= 1
        if not self._open:
            metrics.prompt_tokens.add(last.input_token_len)
            metrics.latency.add(now - self._begin)
            metrics.hand_over()

    def _break_off(self, reason: str) -> None:
        if self._open:
            self._metrics.ends[reason].inc(self._open)
            self._open = 0
            self._metrics.hand_over()
