"""Commands of LSF and Lancium for tests, with faults.

The commands follow the documentation and reports of users. Run this file as a script under the name of a command.

The jobs are in the file FAKE_JOBS, a JSON object with ``jobs`` and ``fault``. Jobs wait, run and end as time passes.
The script imports little, because tests run it often.
"""

import fcntl
import json
import os
import random
import sys
import time

NAMES = ("bsub", "bjobs", "bkill", "lcli")
FAULTS = ("nothing", "half", "old", "hang", "no_answer", "refuse")
"""Faults in this order: the list prints nothing, with exit code 0; the list prints half of its output; the list prints
its former output; a command hangs; a command succeeds but prints no answer; a command fails without an effect."""

PROGRAM = os.path.basename(sys.argv[0])
DOWN = "503 Service Unavailable" if PROGRAM == "lcli" else "LSF is down. Please wait ..."


class Jobs:
    """The jobs in the file, locked while a command runs."""

    def __init__(self):
        self.file = open(os.environ["FAKE_JOBS"], "r+")  # noqa: SIM115 - open as long as the process lives
        fcntl.flock(self.file, fcntl.LOCK_EX)
        self.all = json.load(self.file)
        self.jobs = self.all["jobs"]
        now = time.time()
        for job in self.jobs.values():
            if job["state"] == "waiting" and now >= job["runs_at"]:
                job["state"] = "running"
            if job["state"] != "ended" and now >= job["ends_at"]:
                job["state"], job["why"] = "ended", job.get("why") or "exit code 1"
                job["ended_at"] = now
        kept = self.all["keeps"]
        self.all["jobs"] = self.jobs = {
            number: job for number, job in self.jobs.items() if job["state"] != "ended" or now < job["ended_at"] + kept
        }

    def fault(self, *possible):
        """Return the fault that this call has; empty if it has none."""
        chance, seed = self.all.get("chance", 0.0), self.all["next"] * 1000 + self.all["calls"]
        self.all["calls"] += 1
        if self.all.get("fault") in possible:
            return self.all["fault"]
        chosen = random.Random(seed + self.all.get("seed", 0))
        return chosen.choice(possible) if chosen.random() < chance else ""

    def save(self):
        self.file.seek(0)
        json.dump(self.all, self.file)
        self.file.truncate()
        self.file.flush()

    def add(self, name, mark, reruns):
        number = str(self.all["next"])
        self.all["next"] += 1
        now = time.time()
        times = {"made_at": now, "runs_at": now + self.all["waits"], "ends_at": now + self.all["lives"]}
        job = {"name": name, "mark": mark, "state": "waiting", "reruns": reruns, "environment": dict(os.environ)}
        self.jobs[number] = job | times
        self.all["created"] = [*self.all.get("created", ()), name]
        return number

    def end(self, number):
        job = self.jobs.get(number)
        if job is None or job["state"] == "ended":
            return False
        self.all["ended"] = [*self.all.get("ended", ()), job["name"]]
        job.update(state="ended", why="killed", ended_at=time.time())
        return True


def answer(jobs, output, possible):
    """Print the output of a command that lists jobs. The present fault may delay, shorten, omit or replace the
    output."""
    fault = jobs.fault(*possible)
    if fault == "old":
        output = jobs.all.get("before", output)
    elif fault != "hang":
        jobs.all["before"] = output
    jobs.save()
    if fault == "hang":
        time.sleep(3600)
    if fault == "refuse":
        fail(DOWN, 255)
    if fault != "nothing":
        sys.stdout.write(output[: len(output) // 2] if fault == "half" else output)


def fail(text, code):
    print(text, file=sys.stderr)
    sys.exit(code)


def create(jobs, name, mark, said, reruns=False):
    """Make a job, and print the command's message. ``reruns``: the job runs again if its host fails."""
    fault = jobs.fault("hang", "no_answer", "refuse")
    if fault == "refuse" or jobs.all.get("refusal"):
        jobs.save()
        fail(jobs.all.get("refusal") or DOWN, 255)
    number = jobs.add(name, mark, reruns)
    jobs.save()
    if fault == "hang":
        time.sleep(3600)
    if fault != "no_answer":
        print(said.format(number))


def delete(jobs, number, unknown, said):
    fault = jobs.fault("hang", "no_answer", "refuse")
    if fault == "refuse":
        jobs.save()
        fail(DOWN, 255)
    there = jobs.end(number)
    jobs.save()
    if fault:
        time.sleep(3600)
    if not there:
        fail(unknown.format(number), 255)
    print(said.format(number))


def option(arguments, name):
    return arguments[arguments.index(name) + 1] if name in arguments else ""


def bsub(jobs, arguments):
    said = "Job <{}> is submitted to queue <grid>."
    create(jobs, option(arguments, "-J"), option(arguments, "-Jd"), said, "-rn" not in arguments)


def bkill(jobs, arguments):
    """Implement ``bkill``. Without an id, LSF ends the last job of the user."""
    number = arguments[-1] if arguments and arguments[-1].isdecimal() else max(jobs.jobs, key=int, default="0")
    delete(jobs, number, "Job <{}>: Job has already finished", "Job <{}> is being terminated")


def bjobs(jobs, arguments):
    words = {"waiting": "PEND", "running": "RUN", "ended": "EXIT"}
    prefix = option(arguments, "-J").rstrip("*")
    shown = [(number, job) for number, job in jobs.jobs.items() if job["name"].startswith(prefix)]
    records = [
        {
            "JOBID": number,
            "STAT": "DONE" if job.get("why") == "exit code 0" else words[job["state"]],
            "JOB_NAME": job["name"],
            "EXEC_HOST": "" if job["state"] == "waiting" else "127.0.0.1",
            "PEND_REASON": jobs.all.get("reason", "Job slot limit of the queue") if job["state"] == "waiting" else "",
            "JOB_DESCRIPTION": job["mark"],
            "SUBMIT_TIME": time.strftime("%b %d %H:%M:%S %Y", time.localtime(job["made_at"])),
        }
        for number, job in shown
    ]
    if not records:
        fault = jobs.fault("nothing", "refuse", "hang")
        jobs.save()
        if fault == "hang":
            time.sleep(3600)
        if fault != "nothing":
            fail("No matching job found" if not fault else DOWN, 255)
        return
    document = {"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": records}
    answer(jobs, json.dumps(document) + "\n", ("nothing", "half", "old", "hang", "refuse"))


def lcli(jobs, arguments):
    """Implement Lancium's ``job run``, ``job show`` and ``job delete``. Ended jobs stay until they are deleted."""
    verb = arguments[1]
    if verb == "run":
        create(jobs, option(arguments, "--name"), "", "{}")
    elif verb == "delete":
        number = arguments[2]
        if jobs.jobs.get(number, {}).get("state") == "ended":
            del jobs.jobs[number]
            jobs.save()
            print(number)
        else:
            delete(jobs, number, "no job {}", "{}")
    else:
        words = {"waiting": "queued", "running": "running", "ended": "finished"}
        lines = [f"{number},{job['name']},{words[job['state']]}" for number, job in jobs.jobs.items()]
        answer(jobs, "\n".join(["id,name,status", *lines]) + "\n", ("nothing", "half", "old", "hang", "refuse"))


if __name__ == "__main__":
    commands = {"bsub": bsub, "bjobs": bjobs, "bkill": bkill, "lcli": lcli}
    commands[PROGRAM](Jobs(), sys.argv[1:])
