"""Keys, CORS, TLS, logs and metrics."""
import json
import os
import signal
import socket
import ssl

import serve_harness as harness
from http_endpoints_cases import WithServer


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


class Keys(WithServer):
    @classmethod
    def setUpClass(cls):
        cls.path = harness.SCRATCH / "keys"
        cls.write("alice:sk-alice\nsk-second\n")
        cls.server = harness.Server("--api-key-file", cls.path)

    @classmethod
    def write(cls, text):
        cls.path.write_text(text)
        cls.path.chmod(0o600)

    def test_every_route_needs_a_key(self):  # bug class 21
        for method, path in (("GET", "/v1/models"), ("GET", "/v1/models/tiny-model"), ("POST", "/v1/completions"), ("POST", "/tokenize"),
                             ("POST", "/detokenize"), ("GET", "/tokenizer_info"), ("GET", "/metrics"), ("GET", "/version"),
                             ("GET", "/nowhere"), ("GET", "/v1/completions"), ("POST", "/health/")):
            for headers in ({}, bearer("wrong"), bearer(""), bearer("sk-alic"), bearer("sk-alicee"), bearer("alice:sk-alice"),
                            {"Authorization": "sk-alice"}, {"Authorization": "Basic sk-alice"}, {"Authorization": "Bearer"}):
                response = self.server.ask(method, path, {"prompt": "a"} if method == "POST" else None, headers)
                self.assert_error(response, 401)
                self.assertNotIn("sk-alice", response.body.decode())

    def test_keys_open_routes(self):
        for key in ("sk-alice", "sk-second"):
            self.assertEqual(self.server.ask("GET", "/v1/models", headers=bearer(key)).status, 200)
            self.assertEqual(self.server.complete("a", headers=bearer(key)).status, 200)
        self.assertEqual(self.server.ask("GET", "/v1/models", headers={"authorization": "bearer sk-alice"}).status, 200)

    def test_probes_need_none(self):
        self.assertEqual(self.server.ask("GET", "/health").status, 200)
        self.assertEqual(self.server.ask("GET", "/ready").status, 200)

    def test_the_body_is_not_awaited_without_a_key(self):
        with self.server.client() as client:
            client.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
            self.assertEqual(client.response().status, 401)

    def test_the_log_names_the_key_and_does_not_show_it(self):
        self.server.complete("a", headers={**bearer("sk-alice"), "X-Request-Id": "who-is-it"})
        line = harness.eventually(lambda: [one for one in self.server.access_lines() if "who-is-it" in one.values()])[0]
        self.assertIn("alice", line.values())
        self.assertNotIn("sk-alice", self.server.access_path.read_text() + self.server.log())

    def test_reread_on_sighup(self):
        path = harness.SCRATCH / "changing-keys"
        path.write_text("one:sk-one\n")
        path.chmod(0o600)
        with harness.Server("--api-key-file", path) as server, server.client() as running:
            running.send(harness.request("POST", "/v1/completions", {"prompt": "a {ms:1500} b", "stream": True}, bearer("sk-one")))
            running.first_event()
            path.write_text("two:sk-two\n")
            server.signal(signal.SIGHUP)

            def status(key):
                return server.ask("GET", "/v1/models", headers=bearer(key)).status
            self.assertTrue(harness.eventually(lambda: status("sk-two") == 200))
            self.assertEqual(status("sk-one"), 401)
            path.write_text("")  # no key at all: the old ones stay, and the log says so
            lines = len(server.lines)
            server.signal(signal.SIGHUP)
            self.assertTrue(harness.eventually(lambda: any(str(path) in line for line in server.lines[lines:])))
            self.assertEqual(status("sk-two"), 200)
            events = []
            while (event := running.next_event()) != "[DONE]":
                events.append(json.loads(event)["choices"][0]["text"])
            self.assertEqual("".join(events), " b")

    def test_files_that_are_wrong(self):
        for name, text, mode in (("empty-keys", "", 0o600), ("open-keys", "sk-x\n", 0o644), ("bad-hash", "a:sha256=xyz\n", 0o600)):
            path = harness.SCRATCH / name
            path.write_text(text)
            path.chmod(mode)
            result = harness.run_to_end("--api-key-file", path, "--port", "0")
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(str(path), result.stderr)
        result = harness.run_to_end("--api-key-file", "/nonexistent/keys", "--port", "0")
        self.assertIn("/nonexistent/keys", result.stderr)


class Cors(WithServer):  # bug class 20
    ARGUMENTS = ("--cors-origin", "https://app.example")
    PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}

    def test_preflight(self):
        response = self.server.ask("OPTIONS", "/v1/completions", headers={"Origin": "https://app.example", **self.PREFLIGHT})
        self.assertIn(response.status, (200, 204))
        self.assertEqual(response.headers["access-control-allow-origin"], "https://app.example")
        self.assertIn("POST", response.headers["access-control-allow-methods"])
        allowed = response.headers["access-control-allow-headers"].lower()
        self.assertIn("authorization", allowed)
        self.assertIn("content-type", allowed)

    def test_answers(self):
        headers = {"Origin": "https://app.example"}
        for response in (self.server.complete("a", headers=headers), self.server.complete("a", headers=headers, stream=True),
                         self.server.complete("a", headers=headers, n=0), self.server.ask("GET", "/nowhere", headers=headers)):
            self.assertEqual(response.headers["access-control-allow-origin"], "https://app.example")
            self.assertIn("origin", response.headers["vary"].lower())

    def test_other_origins(self):
        for origin in ("https://evil.example", "https://app.example.evil", "http://app.example", "null"):
            for response in (self.server.ask("OPTIONS", "/v1/completions", headers={"Origin": origin, **self.PREFLIGHT}),
                             self.server.complete("a", headers={"Origin": origin})):
                self.assertNotIn("access-control-allow-origin", response.headers)

    def test_preflight_needs_no_key(self):
        path = harness.SCRATCH / "cors-keys"
        path.write_text("sk-cors\n")
        path.chmod(0o600)
        with harness.Server("--cors-origin", "https://app.example", "--api-key-file", path) as server:
            response = server.ask("OPTIONS", "/v1/completions", headers={"Origin": "https://app.example", **self.PREFLIGHT})
            self.assertIn(response.status, (200, 204))
            refused = server.complete("a", headers={"Origin": "https://app.example"})
            self.assertEqual(refused.status, 401)
            self.assertEqual(refused.headers["access-control-allow-origin"], "https://app.example")

    def test_off_by_default(self):
        with harness.Server() as server:
            for response in (server.ask("OPTIONS", "/v1/completions", headers={"Origin": "https://app.example", **self.PREFLIGHT}),
                             server.complete("a", headers={"Origin": "https://app.example"})):
                self.assertFalse([name for name in response.headers if name.startswith("access-control-")])


class Tls(WithServer):
    @classmethod
    def setUpClass(cls):
        cls.key, cls.certificate = harness.make_certificate("server")
        cls.server = harness.Server("--tls-cert", cls.certificate, "--tls-key", cls.key, tls=harness.tls_client())

    def test_it_serves(self):
        self.assertEqual(self.server.complete("a b").json()["choices"][0]["text"], "a b")
        response = self.server.complete("{every:5}{repeat:20: a}", stream=True)
        self.assertEqual(response.events()[-1], "[DONE]")
        self.assertIn("ready on https://", self.server.log())

    def test_a_client_that_goes_is_cancelled(self):  # bug class 1
        for end in (lambda client: client.close(), lambda client: client.reset(), lambda client: client.socket.unwrap()):
            client = self.server.client()
            client.send(harness.completion("a {wait}", stream=True))
            client.first_event()
            try:
                end(client)
            except (ssl.SSLError, OSError):
                client.close()
            self.assertTrue(self.server.idle())
            client.close()

    def test_old_versions_are_refused(self):
        context = harness.tls_client()
        context.set_ciphers("ALL:@SECLEVEL=0")
        with self.assertWarns(DeprecationWarning):
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        with self.assertRaises(ssl.SSLError) as caught:
            harness.Client(self.server.address, tls=context)
        self.assertIn("PROTOCOL_VERSION", str(caught.exception))
        context = harness.tls_client()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with harness.Client(self.server.address, tls=context) as client:
            self.assertEqual(client.ask("GET", "/version").status, 200)

    def test_what_is_no_tls_is_closed(self):
        for data in (harness.request("GET", "/version"), b"\x16\x03\x01\xff\xff" + b"\x00" * 100, b""):
            client = harness.Client(self.server.address)
            client.send(data)
            client.socket.shutdown(socket.SHUT_WR)
            with self.assertRaises((harness.Gone, ValueError)):
                client.head()
            client.close()
        self.assertEqual(self.server.ask("GET", "/version").status, 200)

    def test_reload(self):
        def der():
            with self.server.client() as client:
                return client.socket.getpeercert(binary_form=True)
        before = der()
        with self.server.client() as running:
            running.send(harness.completion("a {ms:1500} b", stream=True))
            running.first_event()
            key, certificate = harness.make_certificate("renewed", "renewed")
            os.replace(key, self.key)
            os.replace(certificate, self.certificate)
            self.server.signal(signal.SIGHUP)
            self.assertTrue(harness.eventually(lambda: der() != before))
            renewed = der()
            self.certificate.write_text("this is no certificate")
            lines = len(self.server.lines)
            self.server.signal(signal.SIGHUP)
            self.assertTrue(harness.eventually(lambda: any(str(self.certificate) in line for line in self.server.lines[lines:])))
            self.assertEqual(der(), renewed)
            self.assertIn(" b", running.next_event())

    def test_files_that_are_missing(self):
        for arguments, named in ((("--tls-cert", self.certificate, "--tls-key", "/nonexistent/key"), "/nonexistent/key"),
                                 (("--tls-cert", "/nonexistent/cert", "--tls-key", self.key), "/nonexistent/cert"),
                                 (("--tls-cert", self.certificate), "--tls-key"), (("--tls-key", self.key), "--tls-cert")):
            result = harness.run_to_end(*arguments, "--port", "0")
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(named, result.stderr)

    def test_a_key_that_does_not_fit(self):
        key, _ = harness.make_certificate("other")
        _, certificate = harness.make_certificate("yet-another")
        result = harness.run_to_end("--tls-cert", certificate, "--tls-key", key, "--port", "0")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(str(key), result.stderr)


class LogsAndMetrics(WithServer):
    def line_of(self, request_id):
        found = harness.eventually(lambda: [line for line in self.server.access_lines() if request_id in line.values()])
        self.assertEqual(len(found), 1)
        return found[0]

    def test_a_line_a_request(self):
        self.server.complete("xyzzy plugh", headers={"X-Request-Id": "log-1"}, user="somebody")
        line = self.line_of("log-1")
        text = json.dumps(line)
        self.assertNotIn("xyzzy", text)
        self.assertNotIn("plugh", text)
        self.assertNotIn("xyzzy", self.server.log())
        self.assertEqual(line["status"], 200)
        self.assertEqual((line["prompt_tokens"], line["cached_tokens"], line["generated_tokens"]), (3, 0, 2))
        self.assertIn("/v1/completions", line.values())
        self.assertIn("somebody", line.values())
        self.server.complete("xyzzy", headers={"X-Request-Id": "log-2"}, temperature="xyzzy")
        self.assertEqual(self.line_of("log-2")["status"], 400)

    def test_a_line_of_several_choices(self):
        self.server.complete(["{cached:2} xyzzy", "plugh"], headers={"X-Request-Id": "log-3"}, n=3)
        line = self.line_of("log-3")
        self.assertEqual((line["choices"], line["generated_tokens"], line["cached_tokens"]), (6, 6, 2))

    def test_what_clients_write_breaks_no_line(self):
        for value in ('quote"\\', "<b>", "{}"):
            self.server.ask("GET", "/nowhere/" + "x" * 5000 + "\"%0a", headers={"X-Request-Id": value})
        self.server.complete("a", user='"\n\u2028\\')
        self.server.access_lines()

    def test_who_has_gone_is_named(self):
        client = self.server.client()
        client.send(harness.request("POST", "/v1/completions", {"prompt": "a {wait}", "stream": True}, {"X-Request-Id": "gone-1"}))
        client.first_event()
        client.close()
        self.assertEqual(self.line_of("gone-1")["ended_by"], "client")

    def test_no_log(self):
        with harness.Server("--access-log", "none") as server:
            server.complete("a")
            self.assertEqual(server.access_path.read_text(), "")

    def test_a_log_in_a_file(self):
        path = harness.SCRATCH / "access.log"
        with harness.Server("--access-log", path) as server:
            server.ask("GET", "/v1/models")
            self.assertTrue(harness.eventually(lambda: path.exists() and "/v1/models" in path.read_text()))
        result = harness.run_to_end("--access-log", "/nonexistent/access.log", "--port", "0")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("/nonexistent/access.log", result.stderr)

    def test_finished_reasons_add_up(self):  # bug class 18
        name = "vllm:request_success_total"
        with harness.Server() as server:
            self.assertEqual(server.metric(name), 0)
            server.complete("a b")
            server.complete("a b c", max_tokens=1)
            server.complete(["a", "b"], n=3)
            server.complete("{error:x}")
            server.complete("a", stream=True)
            for _ in range(3):
                with server.client() as client:
                    client.send(harness.completion("a {wait}", stream=True))
                    client.first_event()
            self.assertTrue(server.idle())
            self.assertTrue(harness.eventually(lambda: server.metric(name) == 8), server.metrics()[name])
            self.assertEqual(server.metric(name, finished_reason="stop"), 3)
            self.assertEqual(server.metric(name, finished_reason="length"), 1)
            self.assertEqual(server.metric(name, finished_reason="abort"), 3)
            server.complete("a", n=0)  # was never one
            self.assertEqual(server.metric(name), 8)
            for gauge in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
                self.assertEqual(server.metric(gauge), 0)

    def test_no_name_vanishes_and_no_value_is_absurd(self):  # bug class 18
        with harness.Server() as server:
            before = set(server.metrics())
            for wanted in ("vllm:e2e_request_latency_seconds", "vllm:inter_token_latency_seconds", "vllm:time_to_first_token_seconds",
                           "vllm:request_time_per_output_token_seconds", "vllm:request_queue_time_seconds",
                           "vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds"):
                for suffix in ("_bucket", "_sum", "_count"):
                    self.assertIn(wanted + suffix, before)
            for wanted in ("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:kv_cache_usage_perc",
                           "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:request_prompt_tokens_bucket",
                           "vllm:request_generation_tokens_bucket"):
                self.assertIn(wanted, before)
            server.complete("{stop}")
            server.complete("a", stream=True)
            with server.client() as client:
                client.send(harness.completion("{prefill:60000}"))
                harness.eventually(lambda: server.metric("vllm:num_requests_running") == 1)
            self.assertTrue(server.idle())
            after = server.metrics()
            self.assertLessEqual(before, set(after))
            for name, samples in after.items():
                for labels, value in samples:
                    if name.endswith("_seconds_sum"):
                        self.assertTrue(0 <= value < 600, (name, value))
