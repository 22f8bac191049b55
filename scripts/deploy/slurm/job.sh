#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# A job under the library, with a report for each task. The tasks get LD_PRELOAD, the shell of the
# job does not. MPI: `mpirun -x LD_PRELOAD ./program` in the place of srun.
#SBATCH --job-name=program
#SBATCH --requeue
srun --export=ALL,LD_PRELOAD=/usr/lib64/libgpucache.so,GPUCACHE_STATS=exit:report-%p.txt ./program
