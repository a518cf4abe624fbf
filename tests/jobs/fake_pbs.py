"""A PBS as one program, which is qsub, qstat or qdel by its name: a state machine driven by time.

It behaves as OpenPBS 23 does, or as Torque: what is printed, on which stream, with which status; what is kept of a job
and what becomes of its output. The script of a job is really run, by a process that stands for the node's MoM. The
folder of this program has ``plan.json``, which says what happens (see PLAN), and a folder for each job.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PLAN: dict[str, Any] = {
    "torque": False,
    "history": True,  # job_history_enable
    "old": False,  # a PBS that ends jobs over their time with a signal, and says nothing of why
    "usecp": True,  # output can be written where it belongs at once
    "refuses": None,  # what qsub says, and its status
    "queued_s": 0.0,
    "held_s": 0.0,  # at first
    "comments": [],  # while it is queued, one after another, 0.3 s each, the last for ever
    "down_s": [0.0, 0.0],  # from when until when, after the submission, the server does not answer
    "deleted_s": 0.0,  # when an administrator deletes it
    "ending_s": 0.2,  # how long the output is copied
}
FOLDER = Path(__file__).resolve().parent
WIDTH = 79
TERM, KILL_WALLTIME = 271, -29


def plan() -> dict[str, Any]:
    return {**PLAN, **json.loads((FOLDER / "plan.json").read_text())}


def keep(job: Path, name: str, value: object) -> None:
    (job / f"{name}.new").write_text(json.dumps(value))
    (job / f"{name}.new").rename(job / name)


def kept(job: Path, name: str) -> Any:
    with contextlib.suppress(FileNotFoundError):
        return json.loads((job / name).read_text())
    return None


def fail(text: str, status: int) -> int:
    print(text, file=sys.stderr)
    return status


def unreachable(program: str) -> int:
    print("Connection refused", file=sys.stderr)
    return fail(f"{program}: cannot connect to server pbs (errno=15010)", 255)


def qsub(words: list[str]) -> int:
    now, script = plan(), Path(words[-1]).read_text()
    if now["refuses"]:
        return fail(*now["refuses"])
    number = f"{len(list(FOLDER.glob('*.pbs'))) + 12}.pbs"
    job = FOLDER / number
    job.mkdir()
    (job / "script").write_text(script)
    told = dict[str, str]()
    for line in script.splitlines():
        if line.startswith("#PBS -"):
            option, _, value = line.removeprefix("#PBS ").partition(" ")
            told[option if option != "-l" else value.partition("=")[0]] = value.partition("=")[2] or value
    name = told["-N"]
    about = {
        "name": name,
        "at": time.time(),
        "walltime": told.get("walltime", "24:00:00"),
        "direct": "d" in told.get("-k", ""),
        "output": str(Path.cwd() / f"{name}.o{number.partition('.')[0]}"),
        "workdir": str(Path.cwd()),
    }
    keep(job, "about", about)
    with (job / "mom.log").open("ab") as log:
        mom = subprocess.Popen(
            [sys.executable, __file__, "mom", number],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    (job / "mom.pid").write_text(str(mom.pid))
    print("This site says good morning.")
    print(number)
    return 0


def seconds(clock: str) -> int:
    hours, minutes, rest = map(int, clock.split(":"))
    return hours * 3600 + minutes * 60 + rest


def mom(number: str) -> int:
    """Run a job, when its time has come; deliver its output; say how it ended."""
    now, job = plan(), FOLDER / number
    about = kept(job, "about")
    while time.time() < about["at"] + now["queued_s"] + now["held_s"]:
        if (job / "deleted").exists() or 0 < now["deleted_s"] < time.time() - about["at"]:
            return over(job, now, None)
        time.sleep(0.02)
    began = time.time()
    keep(job, "began", began)
    direct = about["direct"] and now["usecp"]
    output = Path(about["output"]) if direct else job / "spool"
    (job / "nodes").write_text("n1\nn1\n")
    env = {**os.environ, "PBS_JOBID": number, "PBS_O_WORKDIR": about["workdir"], "PBS_NODEFILE": str(job / "nodes")}
    with output.open("ab") as stream:
        running = subprocess.Popen(
            ["/bin/bash", str(job / "script")],
            env=env, cwd=job, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True,
        )  # fmt: skip
        status = attend(running, job, now, began + seconds(about["walltime"]), stream)
    keep(job, "ending", time.time())
    if not direct:
        time.sleep(now["ending_s"])
        Path(about["output"]).write_bytes(output.read_bytes())
    return over(job, now, status)


def attend(running: "subprocess.Popen[bytes]", job: Path, now: dict[str, Any], end: float, stream: Any) -> int:
    """Wait for a script, and end it when it is deleted or its time is over; return its Exit_status."""
    late = False
    about = kept(job, "about")
    while running.poll() is None:
        late = time.time() > end
        deleted = (job / "deleted").exists() or 0 < now["deleted_s"] < time.time() - about["at"]
        if late or deleted:
            if late:
                given = seconds(about["walltime"])
                stream.write(f"=>> PBS: job killed: walltime {given + 1} exceeded limit {given}\n".encode())
            os.killpg(running.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(1)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            return KILL_WALLTIME if late and not now["old"] else TERM
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    return running.returncode if running.returncode >= 0 else 256 - running.returncode


def over(job: Path, now: dict[str, Any], status: int | None) -> int:
    asked = kept(job, "deleted")
    somebody = "root" if 0 < now["deleted_s"] < time.time() - kept(job, "about")["at"] else asked
    keep(job, "over", {"status": status, "by": somebody, "at": time.time()})
    return 0


def comment(job: Path, now: dict[str, Any], letter: str, end: dict[str, Any] | None) -> str:
    waited = time.time() - kept(job, "about")["at"]
    said = now["comments"][min(int(waited / 0.3), len(now["comments"]) - 1)] if now["comments"] else ""
    if kept(job, "began"):
        said = "Job run at Thu Aug 06 at 10:00 on (n1:ncpus=2)"
    if letter == "H":
        return "Job held by ada on Thu Aug  6 10:00:00 2026"
    if end and end["by"]:
        return f"{said} and terminated by {end['by']}".strip()
    if end and end["status"] == KILL_WALLTIME:
        return f"{said} and exceeded resource walltime"
    return f"{said} and {'failed' if end['status'] else 'finished'}" if end else said


def attributes(job: Path, now: dict[str, Any]) -> dict[str, str]:
    about, end = kept(job, "about"), kept(job, "over")
    began, ending = kept(job, "began"), kept(job, "ending")
    held = not began and time.time() < about["at"] + now["held_s"]
    letter = "F" if end else "E" if ending else "R" if began else "H" if held else "Q"
    found = {"Job_Name": about["name"], "Job_Owner": "ada@login1.site"}
    if began:
        used = int((end["at"] if end else time.time()) - began)
        found |= {"resources_used.cput": "00:00:00", "resources_used.walltime": time.strftime("%T", time.gmtime(used))}
    found |= {"job_state": "C" if letter == "F" and now["torque"] else letter, "queue": "gpu", "server": "pbs"}
    found |= {"exec_host": "n1/0*2+n2/0*2"} if began else {}
    found |= {"Hold_Types": "u" if held else "n", "Output_Path": f"login1.site:{about['output']}", "Priority": "0"}
    found |= {"Resource_List.walltime": about["walltime"], "stime": "Thu Aug  6 10:00:00 2026"}
    if not now["torque"]:
        found["substate"] = {"Q": "10", "H": "20", "R": "42", "E": "51"}.get(letter, "92")
    if end:
        if end["status"] is not None:
            found["exit_status" if now["torque"] else "Exit_status"] = str(end["status"])
        if not now["torque"] and (end["by"] or end["status"]):
            found["substate"] = "91" if end["by"] else "93"
    path = os.environ["PATH"]
    found["Variable_List"] = f"PBS_O_HOME=/home/ada,PBS_O_PATH={path},PBS_O_WORKDIR={about['workdir']}"
    said = comment(job, now, letter, end)
    return found | ({"comment": said} if said and not now["torque"] else {})


def folded(line: str) -> str:
    """Return a line as qstat -f prints it: what does not fit goes on below, after a tab."""
    parts = [line[:WIDTH]]
    rest = line[WIDTH:]
    while rest:
        parts.append(rest[: WIDTH - 8])
        rest = rest[WIDTH - 8 :]
    return "\n\t".join(parts)


def qstat(words: list[str]) -> int:
    now, number = plan(), words[-1]
    job = FOLDER / number
    if not job.is_dir():
        return fail(f"qstat: Unknown Job Id {number}", 153)
    since = time.time() - kept(job, "about")["at"]
    if now["down_s"][0] <= since < now["down_s"][1]:
        return unreachable("qstat")
    if now["torque"] and "-x" in words:
        print("<Data><Job></Job></Data>")
        return 0
    end = kept(job, "over")
    if end and not now["torque"] and not now["history"]:
        if "-x" in words:
            return fail(f"qstat: PBS is not configured to maintain job history {number}", 0)
        return fail(f"qstat: Unknown Job Id {number}", 153)
    if end and not now["torque"] and "-x" not in words:
        return fail(f"qstat: {number} Job has finished, use -x or -H to obtain historical job information", 35)
    print(f"Job Id: {number}")
    for name, value in attributes(job, now).items():
        print(folded(f"    {name} = {value}"))
    print()
    return 0


def qdel(words: list[str]) -> int:
    job = FOLDER / words[-1]
    if not job.is_dir():
        return fail(f"qdel: Unknown Job Id {words[-1]}", 153)
    if (job / "over").exists():
        return fail(f"qdel: Job has finished {words[-1]}", 35)
    keep(job, "deleted", "ada")
    return 0


if __name__ == "__main__":
    program = Path(sys.argv[0]).name
    if sys.argv[1:2] == ["mom"]:
        sys.exit(mom(sys.argv[2]))
    with (FOLDER / f"{program}.said").open("a") as said:
        said.write(" ".join(sys.argv[1:]) + "\n")
    sys.exit({"qsub": qsub, "qstat": qstat, "qdel": qdel}[program](sys.argv[1:]))
