#!/bin/bash
# Batch script of each job: joins EGO, and stays in the foreground as long as the machine has work. Slurm ends it with SIGTERM.
# deploy/machine has entry.sh, which must be on each node. Jobs have the machine's name in HF_MACHINE_NAME.
export HF_EGO_MASTER=master1.bank.example  # put your EGO management host in
exec /opt/hostfactory/machine/entry.sh
