"""A chat page of a server with keys is for those who know one."""

import httpx

from tests.support.fake_triton import FakeTriton
from tests.support.gateways import running_page


def test_a_page_asks_for_a_key_where_keys_are_set(fake_triton: FakeTriton) -> None:
    with running_page(fake_triton.address, ("k1", "k2")) as url, httpx.Client(base_url=url, trust_env=False) as http:
        assert http.get("/config").status_code == 401
        assert http.post("/gradio_api/queue/join", json={"fn_index": 0, "data": []}).status_code == 401
        assert "an API key of this server" in http.get("/").text
        assert http.post("/login", data={"username": "a", "password": "wrong"}).status_code == 400
        assert http.get("/config").status_code == 401
        assert http.post("/login", data={"username": "a", "password": "k2"}).status_code == 200
        assert http.get("/config").status_code == 200
