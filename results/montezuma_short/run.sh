#!/usr/bin/env bash
# bash results/montezuma_short/run.sh rainbow rainbow_dceo
# 20,000 steps each: learning from step 1,000, a replay of 10,000; killed once 12,000 steps are logged, resumed from the
# checkpoint at 10,000. Log and memory (every 20 s) go beside this file, the runs to runs/montezuma_short.
here=$(dirname "$0")
out=runs/montezuma_short
export OMP_NUM_THREADS=1
for agent in "$@"; do
  dir=$out/$agent
  mkdir -p "$out"
  memory=$here/${agent}_memory.csv
  echo "seconds,part,steps,rss_mb" > "$memory"
  began=$(date +%s)
  for part in 1 2; do
    if [ "$part" = 1 ]; then
      settings=(agent="$agent" total_frames=20_000 learning_starts=1_000 replay_capacity=10_000 log_period=500
        checkpoint_period=5_000 eval_episodes=0 progress=false run_dir="$dir")
    else
      settings=(resume="$dir")
    fi
    python -W ignore recipes/montezuma.py "${settings[@]}" hydra.run.dir="$out/hydra_$agent" > "$out/$agent.$part.log" 2>&1 &
    pid=$!
    while kill -0 "$pid" 2> /dev/null; do
      sleep 20
      steps=$(tail -n 1 "$dir/progress.csv" 2> /dev/null | cut -d, -f1)
      rss=$(awk '/VmRSS/{print int($2 / 1024)}' "/proc/$pid/status" 2> /dev/null)
      [ -n "$rss" ] && echo "$(($(date +%s) - began)),$part,${steps:-0},$rss" >> "$memory"
      if [ "$part" = 1 ] && [ "${steps:-0}" -ge 12000 ] 2> /dev/null; then
        kill -9 "$pid"
        cp "$dir/progress.csv" "$here/${agent}_killed.csv"
      fi
    done
    wait "$pid" 2> /dev/null
  done
  cp "$dir/progress.csv" "$here/$agent.csv"
done
