"""What the tutorials of real people share: a picture of certified shares, and one question over HTTP."""

import json
import subprocess
import sys
import urllib.request

import matplotlib.pyplot as plt


def draw_certified(right, radius, who):
    """Draw which share of inputs is right and would be whatever k users had handed in, a line a number of groups."""
    axis = plt.subplots(figsize=(6, 3.4))[1]
    for n_groups in right:
        counts = [(right[n_groups] & (radius[n_groups] >= k)).mean() for k in range(61)]
        axis.step(range(61), counts, where="post", label=f"{n_groups} groups")
    axis.set_xlabel(who)
    axis.set_ylabel("right and certified")
    axis.set_ylim(0, 1)
    axis.legend()
    plt.show()


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
