#!/usr/bin/env bash
set -e
cslc layout.csl --arch=wse3 --fabric-dims=43,38 --fabric-offsets=4,1 --memcpy --channels=1 -o out
cs_python run.py --name out "$@"
