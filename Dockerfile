# The service in a container: docker build -t limelight .
FROM python:3.12-slim

RUN useradd --create-home limelight
WORKDIR /opt/limelight
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY limelight limelight

# The tested versions, with torch's CPU build, which is a tenth the size of the CUDA one.
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
    --constraint constraints.txt torch \
    && pip install --no-cache-dir --constraint constraints.txt .

# Caches go where every user can write: with `docker run --user` there is no home directory.
ENV LIMELIGHT_CACHE=/tmp/limelight MPLCONFIGDIR=/tmp/matplotlib

USER limelight
WORKDIR /home/limelight
EXPOSE 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["limelight"]
CMD ["--help"]
