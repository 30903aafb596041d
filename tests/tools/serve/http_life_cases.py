"""From the start to the end of a server."""
import signal
import socket
import time
import unittest

import serve_harness as harness


class Start(unittest.TestCase):
    def test_the_port_is_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            result = harness.run_to_end("--port", port)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(str(port), result.stderr)
            self.assertIn("in use", result.stderr)

    def test_there_is_no_model(self):
        result = harness.run_to_end("--port", "0", model="/nonexistent/model")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("/nonexistent/model", result.stderr)

    def test_hosts_that_are_none(self):
        for host in ("999.1.1.1", "no such host", ""):
            result = harness.run_to_end("--host", host, "--port", "0")
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("host", result.stderr.lower())

    def test_a_given_port(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with harness.Server("--port", port) as server:
            self.assertEqual(server.address, port)
            self.assertEqual(server.ask("GET", "/health").status, 200)
        with harness.Server("--port", port) as server:  # and again at once
            self.assertEqual(server.ask("GET", "/health").status, 200)

    def test_a_socket_in_the_file_system(self):
        path = harness.SCRATCH / "serve.sock"
        for _ in range(2):  # the second one finds what a killed server has left
            server = harness.Server("--uds", path)
            self.assertEqual(server.complete("a b").json()["choices"][0]["text"], "a b")
            with server.client() as client:
                client.send(harness.completion("a {wait}", stream=True))
                client.first_event()
            self.assertTrue(server.idle())
            server.kill()
        with harness.Server("--uds", path):
            result = harness.run_to_end("--uds", path)  # somebody serves there
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(str(path), result.stderr)
        self.assertFalse(path.exists())

    def test_what_is_no_socket_is_left_alone(self):
        path = harness.SCRATCH / "a-file"
        path.write_text("keep me")
        result = harness.run_to_end("--uds", path)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(str(path), result.stderr)
        self.assertEqual(path.read_text(), "keep me")

    def test_the_log_says_where_the_front_runs(self):
        with harness.Server("--front-cores", "none") as server:
            self.assertTrue(server.lines)
            self.assertRegex(server.log().lower(), r"front|nice|core")


class Health(unittest.TestCase):  # bug class 9
    def test_a_hang_is_seen(self):
        with harness.Server("--health-stall-s", "1") as server:
            time.sleep(1.2)  # an idle engine makes no steps, and is well
            self.assertEqual(server.ask("GET", "/health").status, 200)
            with server.client() as client:
                client.send(harness.completion("a {ms:30}{hang}", stream=True))
                client.first_event()
                self.assertEqual(server.ask("GET", "/health").status, 200)  # not yet
                self.assertTrue(harness.eventually(lambda: server.ask("GET", "/health").status == 503))
                self.assertNotEqual(server.ask("GET", "/health").body, b"")
            self.assertTrue(harness.eventually(lambda: server.ask("GET", "/health").status == 200))

    def test_slow_is_not_hung(self):
        with harness.Server("--health-stall-s", "1") as server, server.client() as client:
            client.send(harness.completion("a {wait}", stream=True))
            client.first_event()
            time.sleep(1.5)
            self.assertEqual(server.ask("GET", "/health").status, 200)

    def test_no_home(self):
        with harness.Server("--stub-homes-up", "0") as server:
            response = server.ask("GET", "/ready")
            self.assertEqual(response.status, 503)
            self.assertIn("home", response.body.decode())
            self.assertEqual(server.ask("GET", "/health").status, 200)


class Shutdown(unittest.TestCase):  # bug class 10
    def test_idle(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            server = harness.Server()
            with server.client() as idle_connection:
                self.assertEqual(idle_connection.ask("GET", "/version").status, 200)
                server.signal(number)
                self.assertEqual(server.wait(), 0)

    def test_streams_finish(self):
        server = harness.Server("--grace-s", str(harness.LIMIT_S))
        with server.client() as running, server.client() as queued:
            running.send(harness.completion("a {ms:1500} b c", stream=True))
            running.first_event()
            queued.send(harness.completion("{queue:1000} d"))
            harness.eventually(lambda: server.metric("vllm:num_requests_waiting") == 1)
            server.signal(signal.SIGTERM)
            self.assertTrue(harness.eventually(lambda: server.ask("GET", "/ready").status == 503))
            refused = server.complete("e")
            self.assertEqual(refused.status, 503)
            self.assertIn("message", refused.error())
            self.assertEqual(server.ask("GET", "/health").status, 200)
            self.assertEqual(queued.response().json()["choices"][0]["text"], " d")
            events = []
            while (event := running.next_event()) != "[DONE]":
                events.append(event)
            self.assertIn('"stop"', events[-1])
        self.assertEqual(server.wait(), 0)

    def test_after_the_grace_the_rest_is_cut(self):
        server = harness.Server("--grace-s", "1")
        with server.client() as streaming, server.client() as waiting, server.client() as queued:
            streaming.send(harness.completion("a {wait}", stream=True))
            streaming.first_event()
            waiting.send(harness.completion("a {wait}"))
            queued.send(harness.completion("{queue:60000} a", stream=True))
            harness.eventually(lambda: server.metric("vllm:num_requests_waiting") == 1)
            before = len(server.lines)
            server.signal(signal.SIGTERM)
            self.assertIn("error", streaming.next_event())
            with self.assertRaises(harness.Gone):  # no last chunk
                while streaming.chunk():
                    pass
                raise AssertionError("the stream ended as if all were well")
            self.assertEqual(waiting.response().status, 503)
            response = queued.response()
            self.assertTrue(response.status == 503 or response.cut)
        self.assertEqual(server.wait(), 0)
        self.assertRegex("\n".join(server.lines[before:]), r"\b3\b")  # how many were cut
        cut = [line for line in server.access_lines() if line.get("ended_by") == "shutdown"]
        self.assertEqual(len(cut), 3)

    def test_a_second_signal_does_not_wait(self):
        server = harness.Server("--grace-s", "600")
        with server.client() as client:
            client.send(harness.completion("a {wait}", stream=True))
            client.first_event()
            server.signal(signal.SIGTERM)
            self.assertTrue(harness.eventually(lambda: server.ask("GET", "/ready").status == 503))
            time.sleep(1.1)  # what comes sooner is taken for the first one
            server.signal(signal.SIGTERM)
            self.assertEqual(server.wait(), 0)

    def test_signals_that_come_at_once_are_one(self):
        # As `timeout` sends them, to its child and then to the group of both.
        for second in (signal.SIGTERM, signal.SIGINT):
            server = harness.Server("--grace-s", str(harness.LIMIT_S))
            with server.client() as client:
                client.send(harness.completion("a {ms:1500} b", stream=True))
                client.first_event()
                server.signal(signal.SIGTERM)
                server.signal(second)
                events = []
                while (event := client.next_event()) != "[DONE]":
                    events.append(event)
                self.assertIn('"stop"', events[-1])
            self.assertEqual(server.wait(), 0)
            self.assertNotIn("were cut", "\n".join(server.lines))

    def test_a_reader_that_does_not_read_stops_no_shutdown(self):
        server = harness.Server("--grace-s", "1", "--max-context", "100000000")
        with server.client(receive_bytes=4096) as client:
            client.send(harness.completion("{every-us:50}{repeat:100000000: xxxxxxxx}", stream=True, max_tokens=90000000))
            client.head()
            server.signal(signal.SIGTERM)
            self.assertEqual(server.wait(), 0)

    def test_connections_in_the_middle_of_a_request_stop_no_shutdown(self):
        server = harness.Server("--grace-s", "1")
        with server.client() as silent, server.client() as half:
            half.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            harness.eventually(lambda: server.ask("GET", "/version").status == 200)
            server.signal(signal.SIGTERM)
            self.assertEqual(server.wait(), 0)
            silent.close()
