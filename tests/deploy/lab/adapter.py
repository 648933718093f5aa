"""The custom metrics API of pods, as an adapter of Prometheus would serve it:
each question reads /metrics of the pods that it asks about.

usage: adapter.py ADDRESS PORT CERT KEY METRIC      (kubectl is in PATH)
"""

import json
import ssl
import subprocess
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

BASE = "/apis/custom.metrics.k8s.io/v1beta2"
PORT_OF_METRICS = 7080


def pods_of(namespace, selector):
    listed = subprocess.run(
        ["kubectl", "get", "pods", "-n", namespace, "-l", selector, "-o", "json"],
        check=True, capture_output=True, timeout=10)
    return [pod for pod in json.loads(listed.stdout)["items"] if pod["status"].get("podIP")]


def read_metric(pod, name):
    """None: the pod does not tell it (yet)."""
    try:
        url = f"http://{pod['status']['podIP']}:{PORT_OF_METRICS}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return None
    return next((float(line.split()[1]) for line in lines if line.startswith(name + " ")), None)


def item(pod, name, value):
    return {
        "describedObject": {"kind": "Pod", "apiVersion": "/v1", "namespace": pod["metadata"]["namespace"],
                            "name": pod["metadata"]["name"]},
        "metric": {"name": name},
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "value": f"{round(value * 1000)}m",
    }


class Handler(BaseHTTPRequestHandler):
    metric = ""

    def do_GET(self):
        url = urlsplit(self.path)
        if url.path == BASE:
            return self.tell({
                "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "custom.metrics.k8s.io/v1beta2",
                "resources": [{"name": f"pods/{self.metric}", "singularName": "", "namespaced": True,
                               "kind": "MetricValueList", "verbs": ["get"]}]})
        words = unquote(url.path).removeprefix(BASE).split("/")
        if words[1:2] != ["namespaces"] or words[3:] != ["pods", "*", self.metric]:
            return self.send_error(404)
        selector = parse_qs(url.query).get("labelSelector", [""])[0]
        values = [(pod, read_metric(pod, self.metric)) for pod in pods_of(words[2], selector)]
        print(self.path, [(pod["metadata"]["name"], value) for pod, value in values], flush=True)
        return self.tell({
            "kind": "MetricValueList", "apiVersion": "custom.metrics.k8s.io/v1beta2", "metadata": {},
            "items": [item(pod, self.metric, value) for pod, value in values if value is not None]})

    def tell(self, what):
        body = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        pass


def main():
    address, port, cert, key, Handler.metric = sys.argv[1:]
    server = ThreadingHTTPServer((address, int(port)), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


main()
