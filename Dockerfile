# A RadixFlow server on vLLM's own GPU image. Not run on a GPU: see docs/gpu.md.
#   docker build -t radixflow .
#   docker run --gpus all -p 8000:8000 radixflow Qwen/Qwen3.5-0.8B --api-key KEY
FROM vllm/vllm-openai:v0.33.0

COPY pyproject.toml README.md LICENSE /opt/radixflow/
COPY radixflow_sdk /opt/radixflow/radixflow_sdk
COPY server_ext /opt/radixflow/server_ext

# The image brings vLLM and its pinned packages: only what is missing is added.
RUN pip install --no-cache-dir "/opt/radixflow[cli]"

EXPOSE 8000
ENTRYPOINT ["radixflow", "serve"]
CMD ["demo", "--host", "0.0.0.0"]
