#!/usr/bin/env bash
# What tests need and no Python package brings. Where apt may, it installs what is missing; otherwise
# it says which tests are skipped for it.
set -euo pipefail
missing=() known=() unknown=()
lacks() { [ -n "$(PATH="$PATH:/usr/sbin" command -v "$1")" ] || missing+=("$2"); }
if [ -z "$(command -v chromium)" ] || [ "$(id -u)" -eq 0 ]; then  # half the time of all of chromium
  lacks chromium-headless-shell chromium-headless-shell  # the page, and reports of audits
fi
lacks nginx nginx-light        # several workers behind a balancer
lacks pgbouncer pgbouncer      # a pooler before PostgreSQL
lacks ssh-keygen openssh-client  # signatures of audits
lacks openssl openssl          # servers with certificates of their own
lacks npm npm                  # brings Elasticsearch and OpenSearch
if [ "$(id -u)" -eq 0 ]; then  # others build no image
  lacks buildah buildah
  lacks mmdebstrap mmdebstrap
fi
[ "${#missing[@]}" -gt 0 ] || exit 0
if [ "$(id -u)" -eq 0 ] && [ -n "$(command -v apt-get)" ]; then
  apt-get update -qq
  for package in "${missing[@]}"; do
    if apt-cache show "$package" &>/dev/null; then
      known+=("$package")
    elif [ "$package" != chromium-headless-shell ] || [ -z "$(command -v chromium)" ]; then
      unknown+=("$package")
    fi
  done
  missing=("${unknown[@]}")
  [ "${#known[@]}" -eq 0 ] ||
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${known[@]}"
fi
if [ "${#missing[@]}" -gt 0 ]; then
  echo "Tests of the page (chromium-headless-shell), of a balancer (nginx-light), of a pooler (pgbouncer), of signatures (openssh-client), of the"
  echo "image (buildah, mmdebstrap), and of Elasticsearch and OpenSearch (npm, openssl) are skipped for"
  echo "what is missing: ${missing[*]}."
fi
