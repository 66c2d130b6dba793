"""A served model that is spread over several ranks (`tp`)."""

import pytest

from lmdeploy.serve.errors import TritonStartError
from lmdeploy.serve.tritonserver import TritonServer
from tests.support.servers import generated, running_triton

QUESTION = [{"role": "user", "content": "Name three rivers of France and say a sentence about each."}]


def test_a_model_served_by_three_ranks_answers_as_one_does(triton_server: TritonServer) -> None:
    with running_triton(tp=3) as server:
        spread = generated(server, QUESTION, max_new_tokens=48)["text_output"]
    assert len(spread) > 100
    assert spread == generated(triton_server, QUESTION, max_new_tokens=48)["text_output"]


def test_a_number_of_ranks_that_does_not_fit_keeps_the_server_from_starting_and_says_why() -> None:
    with pytest.raises(TritonStartError, match="num_heads 9 is no multiple of it"), running_triton(tp=2):
        pass
