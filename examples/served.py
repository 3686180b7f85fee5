"""Ask a served folder over HTTP, as the tutorials do: start ``codeward serve``, ask once, end it."""

import json
import subprocess
import sys
import urllib.request


def ask_served(folder, body, content_type):
    """Return the answer about one input: what ``POST /predict`` says of it."""
    command = [sys.executable, "-m", "codeward", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = next(word for line in server.stdout for word in line.split() if word.startswith("http"))
            request = urllib.request.Request(f"{address}predict", body.encode(), {"Content-Type": content_type})
            return json.load(urllib.request.urlopen(request))["predictions"][0]
        finally:
            server.terminate()
