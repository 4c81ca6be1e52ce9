"""What clients meet at the server's edges, byte by byte: heads that are too large, connections that are too many, bytes that are no HTTP."""
import contextlib
import json
import socket
import unittest

from support import Daemon


def say(port, data):
    """All of what the server answers to data until it closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as s:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            s.sendall(data)
        return hear(s)


def hear(s):
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while part := s.recv(65536):
            answer += part
    return answer


def get(path="/healthz", *headers):
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers, "", ""]).encode()


def error(answer):
    """(status, code, param, the sentence and its hint) of an error answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    e = json.loads(body)["error"]
    return int(head.split()[1]), e["code"], e["param"], e["message"] + "; " + e["hint"]


class Heads(unittest.TestCase):
    def test_a_head_is_bounded_and_says_so(self):
        with Daemon() as d:
            for path, headers in (("/healthz", ["X-Long: " + "x" * 30000]), ("/healthz?" + "x" * 30000, []), ("/healthz", [f"X-{i}: {i}" for i in range(800)])):
                self.assertTrue(say(d.port, get(path, *headers)).startswith(b"HTTP/1.1 200 "), path[:20])
            for path, headers in (("/healthz", ["X-Long: " + "x" * 33000]), ("/" + "x" * 33000, []), ("/healthz", [f"X-{i}: " + "x" * 60 for i in range(550)])):
                status, code, param, says = error(say(d.port, get(path, *headers)))
                self.assertEqual((status, code, param), (431, "HEAD_TOO_LARGE", "head"), path[:20])
                self.assertIn("32768", says)
            self.assertIn(say(d.port, get("/healthz", "X-Long: " + "x" * 1000000))[:12], (b"HTTP/1.1 431", b""))

    def test_what_is_no_http_is_refused_and_the_server_goes_on(self):
        with Daemon("--set", "http.upload_timeout_s=1") as d:
            for data in (b"\0" * 100 + b"\r\n\r\n", b"hello\r\n\r\n", b"GET /healthz HTTP/9.9\r\n\r\n", b"GET /healthz HTTP/1.1\r\n\r\n", b"GET  HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n" * 30,
                         b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n"):
                with self.subTest(data=data[:30]):
                    answer = say(d.port, data)
                    self.assertRegex(answer, rb"\A(HTTP/1\.[01] [45]|\Z)")  # a page of the library's, or closed
            self.assertEqual(d.get("/healthz")[0], 200)


class Connections(unittest.TestCase):
    def bounded(self, setting, hint, n):
        with Daemon("--set", f"{setting}={n}") as d, contextlib.ExitStack() as held:
            def hold():
                s = held.enter_context(socket.create_connection(("127.0.0.1", d.port), timeout=10))
                s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                return s

            open_ones = []

            def one_more():
                s = hold()
                if s.recv(4096).startswith(b"HTTP/1.1 200 "):
                    open_ones.append(s)
                return len(open_ones) == n

            d.wait_until(one_more)  # those of the start may take a moment to be gone
            for _ in range(3):  # too many, and they never ask: no reason to refuse others later
                held.enter_context(socket.create_connection(("127.0.0.1", d.port)))
            for _ in range(3):
                answer = hear(hold())  # told why, and closed though it asked for more
                self.assertEqual(error(answer)[:3], (503, "QUEUE_FULL", "connections"))
                self.assertIn(hint, error(answer)[3])
                self.assertIn(f"{n} connections", error(answer)[3])
            silent = [socket.create_connection(("127.0.0.1", d.port)) for _ in range(60)]
            for s in silent:
                s.close()
            open_ones[0].close()
            d.wait_until(lambda: say(d.port, get()).startswith(b"HTTP/1.1 200 "))
            open_ones[1].sendall(get())
            self.assertTrue(hear(open_ones[1]).startswith(b"HTTP/1.1 200 "))

    def test_one_too_many_is_told_why(self):
        self.bounded("http.max_connections", "raise http.max_connections", 8)

    def test_one_too_many_of_an_address_is_told_why(self):
        self.bounded("http.max_connections_per_client", "raise http.max_connections_per_client", 3)


if __name__ == "__main__":
    unittest.main()
