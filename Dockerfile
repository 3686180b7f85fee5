# Serves one run folder on a CPU, as a user without rights. The ledger is written into the folder, so run as its owner.
#   docker build -t codeward .
#   docker run --rm --user "$(id -u):$(id -g)" -p 8000:8000 -e CODEWARD_TOKEN=... \
#     -v "$PWD/runs/mine:/run-folder" codeward
FROM python:3.11-slim
RUN useradd --create-home --uid 10001 codeward
WORKDIR /opt/codeward
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
# torch first and pinned, so that the CPU build is taken where one is offered.
RUN pip install --no-cache-dir --constraint constraints.txt torch \
 && pip install --no-cache-dir --constraint constraints.txt ".[serve]"
USER 10001
WORKDIR /home/codeward
VOLUME /run-folder
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["codeward"]
CMD ["serve", "/run-folder", "--host", "0.0.0.0", "--port", "8000"]
