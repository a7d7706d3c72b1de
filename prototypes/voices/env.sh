export PYTHONPATH=/work/wt/voices/src:/work/wt/voices/data:/work/wt/voices/eval:/work/pyworld_lib OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore
PY="nice -n 8 /work/wt/voices/.venv/bin/python"
