K=/root/k; cp .gpu3/* $K/
cat > $K/work22.sh <<'X'
K=/root/k; cd $K/tree
export PYTHONPATH=$K/tree/src:$K/pkgs:$K/tree/experiments/default:$K/tree/experiments/cifar:$K/tree/benchmarks FEDNOIL_DATA=$K/data PYTHONUNBUFFERED=1
while [ ! -f $K/out26/DRIVE_DONE ]; do sleep 0.5; done
date +%s; python3 $K/drive.py $K/c22.json 4 $K/out22 $K/data $K/logs22 900; date +%s
X
setsid bash $K/work22.sh > $K/work22.log 2>&1 < /dev/null &
