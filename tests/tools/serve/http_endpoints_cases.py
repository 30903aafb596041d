"""Every route, and who may call it how."""
import json
import unittest

import serve_harness as harness


class WithServer(unittest.TestCase):
    """One server for all tests of a class."""
    ARGUMENTS = ()

    @classmethod
    def setUpClass(cls):
        cls.server = harness.Server(*cls.ARGUMENTS)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def assert_error(self, response, status, **fields):
        self.assertEqual(response.status, status, response.body)
        error = response.error()
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertIsInstance(error["message"], str)
        self.assertNotEqual(error["message"], "")
        for name, value in fields.items():
            self.assertEqual(error[name], value, error)
        return error["message"]


class Endpoints(WithServer):
    ARGUMENTS = ("--served-model-name", "tiny", "small")

    def test_models(self):
        response = self.server.ask("GET", "/v1/models")
        self.assertEqual(response.status, 200)
        self.assertTrue(response.headers["content-type"].startswith("application/json"))
        listed = response.json()
        self.assertEqual(listed["object"], "list")
        self.assertEqual([model["id"] for model in listed["data"]], ["tiny", "small"])
        for model in listed["data"]:
            self.assertEqual(model["object"], "model")
            self.assertEqual(model["max_model_len"], 8192)
            self.assertIsInstance(model["created"], int)
            self.assertIsInstance(model["owned_by"], str)
            self.assertEqual(model["root"], str(harness.MODEL))  # vllm bench serve needs it
        one = self.server.ask("GET", "/v1/models/small")
        self.assertEqual(one.json()["id"], "small")

    def test_models_that_are_not_there(self):
        self.assert_error(self.server.ask("GET", "/v1/models/large"), 404, code="model_not_found",
                          type="invalid_request_error")
        message = self.assert_error(self.server.complete("a", model="large"), 404, code="model_not_found",
                                    param="model")
        self.assertIn("large", message)
        self.assertIn("tiny", message)  # what there is

    def test_model_names_that_are_taken(self):
        for fields in ({"model": "tiny"}, {"model": "small"}, {"model": ""}, {"model": None}, {}):
            self.assertEqual(self.server.complete("a", **fields).status, 200, fields)

    def test_the_default_name_is_the_folders(self):
        with harness.Server() as server:
            self.assertEqual(server.ask("GET", "/v1/models").json()["data"][0]["id"], "tiny-model")

    def test_health_ready_version(self):
        self.assertEqual(self.server.ask("GET", "/health").status, 200)
        self.assertEqual(self.server.ask("GET", "/ready").status, 200)
        version = self.server.ask("GET", "/version").json()["version"]
        self.assertRegex(version, r"^\d+\.\d+")

    def test_tokenize(self):
        text = "Once upon a t\u00efme \u2028 \U0001F600"
        answer = self.server.ask("POST", "/tokenize", {"prompt": text}).json()
        self.assertEqual(answer["count"], len(answer["tokens"]))
        self.assertEqual(answer["max_model_len"], 8192)
        self.assertEqual(answer["tokens"][0], 256)
        bare = self.server.ask("POST", "/tokenize", {"prompt": text, "add_special_tokens": False}).json()
        self.assertEqual(bare["tokens"], answer["tokens"][1:])
        back = self.server.ask("POST", "/detokenize", {"tokens": bare["tokens"]}).json()
        self.assertEqual(back["prompt"], text)
        strings = self.server.ask("POST", "/tokenize", {"prompt": "a b", "return_token_strs": True}).json()
        self.assertEqual(strings["token_strs"], ["<s>", "a", " b"])

    def test_detokenize_refuses_what_is_no_token(self):
        for tokens in ([-1], [65536], [2**31], ["a"], [1.5], "a", None):
            response = self.server.ask("POST", "/detokenize", {"tokens": tokens})
            self.assert_error(response, 400)

    def test_tokenizer_info(self):
        info = self.server.ask("GET", "/tokenizer_info").json()
        self.assertEqual(info["eos_token"], "</s>")
        self.assertEqual(info["bos_token"], "<s>")

    def test_metrics(self):
        response = self.server.ask("GET", "/metrics")
        self.assertEqual(response.status, 200)
        self.assertTrue(response.headers["content-type"].startswith("text/plain"))

    def test_metrics_have_the_engines_durations(self):
        page = self.server.ask("GET", "/metrics").body.decode()
        for name, count in (("recovery", 1), ("recovery_queue", 2), ("loss_detection", 3)):  # a quarter of a second each
            name = f"fastdecode_{name}_seconds"
            for sample in (f'{name}_bucket{{le="0.1"}} 0', f'{name}_bucket{{le="0.3"}} {count}', f"{name}_count {count}",
                           f"{name}_sum {count / 4:g}"):
                self.assertIn(f"\n{sample}\n", page)

    def test_unknown_routes(self):
        for path in ("/", "/v1", "/v1/embeddings", "/v1/chat", "/v1/models/", "/metrics/x", "/v1/completions/"):
            for method in ("GET", "POST"):
                response = self.server.ask(method, path, {} if method == "POST" else None)
                self.assertIn(response.status, (404, 405), (method, path))
                self.assert_error(response, response.status)

    def test_wrong_methods_say_which_are_right(self):
        for path, allowed in (("/v1/completions", "POST"), ("/tokenize", "POST"), ("/detokenize", "POST")):
            response = self.server.ask("GET", path)
            self.assert_error(response, 405)
            self.assertIn(allowed, response.headers["allow"])
            self.assertNotIn("GET", response.headers["allow"])
        for path in ("/v1/models", "/v1/models/tiny", "/health", "/ready", "/metrics", "/version", "/tokenizer_info"):
            response = self.server.ask("POST", path, {})
            self.assert_error(response, 405)
            self.assertIn("GET", response.headers["allow"])
        self.assert_error(self.server.ask("DELETE", "/v1/models/tiny"), 405)

    def test_head_is_get_without_the_body(self):
        with self.server.client() as client:
            for path in ("/v1/models", "/health", "/metrics"):
                self.assertEqual(client.ask("HEAD", path).status, 200)
            self.assertEqual(client.ask("GET", "/v1/models").status, 200)  # the connection is in step

    def test_queries_are_no_part_of_the_route(self):
        self.assertEqual(self.server.ask("GET", "/v1/models?limit=1&x=%00").status, 200)
        self.assertEqual(self.server.ask("GET", "/health?").status, 200)

    def test_the_request_id_comes_back_if_it_is_printable(self):
        good = "a" * 128
        self.assertEqual(self.server.ask("GET", "/health", headers={"X-Request-Id": good}).headers["x-request-id"], good)
        for bad in ("a" * 129, "a\u00e9b", "a\tb", ""):
            response = self.server.ask("GET", "/v1/models", headers={"X-Request-Id": bad})
            self.assertEqual(response.status, 200)
            self.assertNotEqual(response.headers["x-request-id"], bad)
            self.assertRegex(response.headers["x-request-id"], r"^[ -~]{1,128}$")
        first, second = (self.server.complete("a").headers["x-request-id"] for _ in range(2))
        self.assertNotEqual(first, second)

    def test_keep_alive_and_close(self):
        with self.server.client() as client:
            for _ in range(5):
                self.assertEqual(client.ask("GET", "/version").status, 200)
            response = client.ask("GET", "/version", headers={"Connection": "close"})
            self.assertEqual(response.status, 200)
            self.assertTrue(client.closed())

    def test_http_1_0(self):
        with self.server.client() as client:
            client.send(b"GET /version HTTP/1.0\r\n\r\n")
            self.assertEqual(client.response().status, 200)
            self.assertTrue(client.closed())

    def test_pipelined_requests_are_answered_in_order(self):
        with self.server.client() as client:
            client.send(harness.completion("{ms:50} one") + harness.request("GET", "/version")
                        + harness.completion("two", stream=True) + harness.completion("three"))
            self.assertEqual(client.response().json()["choices"][0]["text"], " one")
            self.assertIn("version", client.response().json())
            self.assertEqual(client.response().objects()[0]["choices"][0]["text"], "two")
            self.assertEqual(client.response().json()["choices"][0]["text"], "three")

    def test_a_request_in_pieces(self):
        data = harness.completion("a b")
        with self.server.client() as client:
            for i in range(0, len(data), 7):
                client.send(data[i:i + 7])
            self.assertEqual(client.response().json()["choices"][0]["text"], "a b")

    def test_expect_100_continue(self):
        body = json.dumps({"prompt": "a"}).encode()
        with self.server.client() as client:
            client.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body))
            self.assertEqual(client.head().status, 100)
            client.send(body)
            self.assertEqual(client.response().status, 200)

    def test_chunked_bodies(self):
        body = json.dumps({"prompt": "a b"}).encode()
        with self.server.client() as client:
            client.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            for i in range(0, len(body), 5):
                piece = body[i:i + 5]
                client.send(b"%x\r\n%s\r\n" % (len(piece), piece))
            client.send(b"0\r\n\r\n")
            self.assertEqual(client.response().json()["choices"][0]["text"], "a b")
            self.assertEqual(client.ask("GET", "/version").status, 200)
