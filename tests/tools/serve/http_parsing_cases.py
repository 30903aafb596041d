"""HTTP that is broken, or meant to break something (bug class 27)."""
import socket
import time

import serve_harness as harness
from http_endpoints_cases import WithServer

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"
BODY = b'{"prompt": "a"}'


class Parsing(WithServer):
    def tearDown(self):
        self.assertTrue(self.server.alive())
        self.assertEqual(self.server.ask("GET", "/version").status, 200)

    def answer(self, data):
        """The answer to these bytes; None if the connection is closed without one."""
        with self.server.client() as client:
            try:
                client.send(data)
            except (ConnectionResetError, BrokenPipeError):
                pass
            try:
                response = client.response()
            except harness.Gone:
                return None, True
            return response, response.headers.get("connection", "").lower() == "close" and client.closed()

    def check_refused(self, data, statuses, must_close=True):
        response, closed = self.answer(data)
        if response is not None:
            self.assertIn(response.status, statuses, data[:300])
            self.assertIn("message", response.error())
        if must_close:
            self.assertTrue(closed, f"whatever comes next would be read as a request: {data[:200]}")

    def test_both_lengths(self):
        for more in (b"Content-Length: 15\r\nTransfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n"):
            self.check_refused(POST + more + b"\r\nf\r\n" + BODY + b"\r\n0\r\n\r\n", (400,))

    def test_lengths_that_are_none(self):
        for length in (b"-1", b"+15", b"15x", b"0x0f", b"1 5", b"15, 16", b"18446744073709551616", b"99999999999999999999999"):
            self.check_refused(POST + b"Content-Length: " + length + b"\r\n\r\n" + BODY, (400, 413))
        self.check_refused(POST + b"Content-Length: 15\r\nContent-Length: 16\r\n\r\n" + BODY + b"x", (400,))

    def test_codings_that_are_unknown(self):
        for coding in (b"gzip", b"gzip, chunked", b"chunked, gzip", b"chunked, chunked", b"identity", b"xchunked", b"chunkedx"):
            self.check_refused(POST + b"Transfer-Encoding: " + coding + b"\r\n\r\nf\r\n" + BODY + b"\r\n0\r\n\r\n", (400, 501))

    def test_sizes_of_chunks(self):
        for size in (b"-2", b"-f", b"+f", b"0xf", b"f f", b"", b" ", b"g", b"ffffffffffffffff", b"fffffffffffffffff", b"7fffffffffffffff",
                     b"10000000000000000", b"f\x00", b"f\n", b"\xff"):
            self.check_refused(CHUNKED + b"\r\n" + size + b"\r\n" + BODY + b"\r\n0\r\n\r\n", (400, 413))

    def test_chunks_that_are_longer_than_they_say(self):
        self.check_refused(CHUNKED + b"\r\n5\r\n" + BODY + b"\r\n0\r\n\r\n", (400,))

    def test_extensions_of_chunks(self):
        response, _ = self.answer(CHUNKED + b"\r\nf;a=b\r\n" + BODY + b"\r\n0\r\n\r\n")
        self.assertIn(response.status, (200, 400))
        for extension in (b";a=" + b"x" * 300, b";a" * 5000, b';a="' + b"x" * 100000):
            self.check_refused(CHUNKED + b"\r\nf" + extension + b"\r\n" + BODY + b"\r\n0\r\n\r\n", (400, 413, 431))

    def test_trailers(self):
        for trailer in (b"X: y\r\n", b"Content-Length: 5\r\n", b"x" * 100000 + b": y\r\n"):
            self.check_refused(CHUNKED + b"\r\nf\r\n" + BODY + b"\r\n0\r\n" + trailer + b"\r\n", (400, 413, 431))

    def test_many_headers(self):
        many = b"".join(b"X-%d: y\r\n" % i for i in range(10000))
        self.check_refused(b"GET /version HTTP/1.1\r\nHost: x\r\n" + many + b"\r\n", (431, 400))
        response, _ = self.answer(b"GET /version HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 10000 + b"\r\n")
        self.assertTrue(response is None or response.status == 431)

    def test_long_headers(self):
        for data in (b"GET /version HTTP/1.1\r\nX: " + b"y" * 1000000 + b"\r\n\r\n",
                     b"GET /version HTTP/1.1\r\n" + b"x" * 1000000 + b": y\r\n\r\n"):
            self.check_refused(data, (431, 400))
        self.check_refused(b"GET /" + b"v" * 1000000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", (414, 431, 400))
        self.check_refused(b"G" * 1000000, (400, 431, 414))

    def test_heads_that_are_none(self):
        for data in (b"\x00", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 60, b"GET\r\n\r\n", b"GET /\r\n\r\n",
                     b"/version HTTP/1.1\r\n\r\n", b"GET /version HTTP/9.9\r\n\r\n", b"GET /version HTTP/2.0\r\n\r\n",
                     b"GET /version HTTP/1.1x\r\n\r\n", b"GET /version http/1.1\r\n\r\n", b"GET  /version HTTP/1.1\r\n\r\n",
                     b"GET /ver\x00sion HTTP/1.1\r\n\r\n", b"GET /ver sion HTTP/1.1\r\n\r\n", b"G\x00T /version HTTP/1.1\r\n\r\n",
                     b"GET /version HTTP/1.1\r\nHost : x\r\n\r\n", b"GET /version HTTP/1.1\r\nHost\r\n\r\n",
                     b"GET /version HTTP/1.1\r\n: x\r\n\r\n", b"GET /version HTTP/1.1\r\nA: b\x00c\r\n\r\n",
                     b"GET /version HTTP/1.1\r\n\x80: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
            with self.subTest(data[:60]):
                self.check_refused(data + b"\r\n\r\n", (400, 404, 405, 501, 505))

    def test_smuggling(self):
        # Whatever the first request is taken for, what is inside of its body is never answered as one more.
        inner = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
        for head in (b"Content-Length: 5\r\nTransfer-Encoding : chunked\r\n", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
                     b"Content-Length : 0\r\n", b"Content-Length: 0\r\n Transfer-Encoding: chunked\r\n",
                     b"Transfer-Encoding:\x0bchunked\r\n", b"Content-Length: 0\r\nContent-Length: 38\r\n"):
            with self.server.client() as client:
                client.send(POST + head + b"\r\n" + b"0\r\n\r\n" + inner)
                try:
                    self.assertGreaterEqual(client.response().status, 400, head)
                    self.assertTrue(client.closed(), head)
                except harness.Gone:
                    pass

    def test_methods(self):
        for method in (b"CONNECT", b"TRACE", b"PUT", b"PATCH", b"DELETE", b"FOO", b"get"):
            response, _ = self.answer(method + b" /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            if response is not None:
                self.assertIn(response.status, (400, 404, 405, 501), method)

    def test_targets(self):
        for target in (b"http://localhost/version", b"/../etc/passwd", b"/%2e%2e/%2e%2e/etc/passwd", b"/v1/models/%00", b"/v1/models/%zz",
                       b"/v1/models/" + b"a" * 5000, b"*", b"//version", b"/version#x", b"/v1/models/<script>"):
            response, _ = self.answer(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            if response is not None:
                self.assertIn(response.status, (200, 400, 404, 414), target)
                self.assertNotIn(b"root:", response.body)

    def test_expectations_that_are_unknown(self):
        response, _ = self.answer(POST + b"Expect: 200-maybe\r\nContent-Length: 15\r\n\r\n" + BODY)
        self.assertIn(response.status, (200, 417))

    def test_an_upgrade_is_not_taken(self):
        response, _ = self.answer(b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        self.assertEqual(response.status, 200)

    def test_lines_between_requests(self):
        with self.server.client() as client:
            client.send(harness.request("GET", "/version") + b"\r\n" + harness.request("GET", "/version"))
            self.assertEqual(client.response().status, 200)
            try:
                self.assertIn(client.response().status, (200, 400))
            except harness.Gone:
                pass

    def test_an_answer_that_meets_a_body_is_not_lost(self):
        # The server answers 404 before the body is there, and must not close so that the answer is lost.
        for _ in range(5):
            with self.server.client() as client:
                client.send(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n")
                time.sleep(0.02)
                try:
                    client.send(b"x" * 300000)
                except OSError:
                    pass
                self.assertEqual(client.response().status, 404)


class Connections(WithServer):
    ARGUMENTS = ("--max-connections", "4")

    def test_the_limit(self):
        clients = [self.server.client() for _ in range(4)]
        for client in clients:
            self.assertEqual(client.ask("GET", "/version").status, 200)
        with self.server.client() as one_more:
            one_more.socket.settimeout(2)
            try:
                one_more.send(harness.request("GET", "/version"))
                self.assertEqual(one_more.response().status, 503)
            except (harness.Gone, TimeoutError, ConnectionError):
                pass  # it is closed, or left waiting
        for client in clients:
            self.assertEqual(client.ask("GET", "/version").status, 200)
            client.close()

        def served():
            try:
                return self.server.ask("GET", "/version").status == 200
            except (harness.Gone, ConnectionError):
                return False
        self.assertTrue(harness.eventually(served))

    def test_connections_that_say_nothing_leave_room(self):
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", self.server.address)):
                pass

        def served():
            try:
                return self.server.ask("GET", "/version").status == 200
            except (harness.Gone, ConnectionError):
                return False
        self.assertTrue(harness.eventually(served))
