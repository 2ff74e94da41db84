# bash run_sim.sh WIDTH HEIGHT [ITERATIONS [DEPTH]]
set -e
cslc layout.csl --fabric-dims=$(($1 + 7)),$(($2 + 2)) --fabric-offsets=4,1 \
    --params=width:$1,height:$2,depth:${4:-16} -o out --memcpy --channels=1
cs_python run.py --name out --iterations ${3:-2}
