"""Odd but possible tables, for every planner: a plan with finite metrics, or one line that says what is wrong."""

from __future__ import annotations

import csv
import json
import math
from typing import TYPE_CHECKING

import pytest

from nearcast.cli import main

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Tables = dict[str, str]

HOMES: Tables = {
    "sites": "site,x_km,y_km,storage,compute\na,0,0,9,30\nb,9,0,9,30\n",
    "clients": "client,x_km,y_km\np,1,0\nq,8,0\n",
    "topics": "topic,spool_size\nt,2\nu,3\n",
    "members": "topic,client,role\nt,p,both\nt,q,both\nu,q,pub\n",
}
STORES: Tables = {
    "edges": "a,b\n1,2\n2,3\n",
    "demand": "node,topic,rate\n1,t,4\n3,t,2\n2,u,1\n",
}
BALANCE: Tables = {
    "sites": "site\na\nb\n",
    "subscriptions": "subscriber,subscription\np,s\nq,s\nq,r\n",
    "rates": "subscription,rate\ns,2\nr,1\n",
    "current": "subscriber,site\np,a\nq,a\n",
}
PARTITION: Tables = {
    "topics": "topic,bound_ms,rate_out\nt,50,1\nu,50,1\n",
    "clients": "topic,client,role,c0,height\nt,p,pub,9,1\nt,q,sub,8,1\nu,p,both,1,1\n",
    "sites": "site,c0,height,rate_limit\na,0,1,5\nb,9,1,5\n",
    "current": "topic,site\nt,a\nu,a\n",
}

# What is odd about each, with the tables that differ.
ODD: dict[str, dict[str, Tables]] = {
    "homes": {
        "as it is": {},
        "1 site": {"sites": "site,x_km,y_km,storage,compute\na,0,0,9,30\n"},
        "0 topics": {"topics": "topic,spool_size\n", "members": "topic,client,role\n"},
        "topics without members": {"members": "topic,client,role\n"},
        "0 clients": {"clients": "client,x_km,y_km\n", "members": "topic,client,role\n"},
        "0 sites": {"sites": "site,x_km,y_km,storage,compute\n"},
        "everything at one place": {
            "sites": "site,x_km,y_km,storage,compute\na,1,1,9,30\nb,1,1,9,30\n",
            "clients": "client,x_km,y_km\np,1,1\nq,1,1\n",
        },
        "no room at all": {"sites": "site,x_km,y_km,storage,compute\na,0,0,0,0\nb,9,0,0,0\n"},
        "far away": {"clients": "client,x_km,y_km\np,1e300,0\nq,8,0\n"},
        "large numbers": {"sites": "site,x_km,y_km,storage,compute\na,0,0,1e300,30\nb,9,0,9,30\n"},
        "large spools": {"topics": "topic,spool_size\nt,1e300\nu,3\n"},
        "unicode": {
            "sites": "site,x_km,y_km,storage,compute\n京都,0,0,9,30\nÅ 🚲,9,0,9,30\n",
            "clients": "client,x_km,y_km\n'p',1,0\nñ,8,0\n",
            "topics": "topic,spool_size\nт,2\nu,3\n",
            "members": "topic,client,role\nт,'p',both\nт,ñ,both\nu,ñ,pub\n",
        },
        "not a number": {"topics": "topic,spool_size\nt,nan\nu,3\n"},
    },
    "stores": {
        "as it is": {},
        "2 nodes": {"edges": "a,b\n1,2\n", "demand": "node,topic,rate\n1,t,4\n"},
        "0 topics": {"demand": "node,topic,rate\n"},
        "0 links": {"edges": "a,b\n"},
        "a node linked with itself": {"edges": "a,b\n1,1\n", "demand": "node,topic,rate\n1,t,4\n"},
        "nobody asks": {"demand": "node,topic,rate\n1,t,0\n3,t,0\n2,u,0\n"},
        "all alike": {"demand": "node,topic,rate\n1,t,1\n2,t,1\n3,t,1\n1,u,1\n2,u,1\n3,u,1\n"},
        "a ring": {"edges": "a,b\n1,2\n2,3\n3,4\n4,5\n5,1\n"},
        "large rates": {"demand": "node,topic,rate\n1,t,1e300\n"},
        "large costs": {"edges": "a,b,cost\n1,2,1e300\n2,3,1\n"},
        "two islands": {"edges": "a,b\n1,2\n3,4\n"},
        "unicode": {"edges": "a,b\n京都,Å 🚲\nÅ 🚲,ñ\n", "demand": "node,topic,rate\n京都,т,4\nñ,т,2\n"},
    },
    "balance": {
        "as it is": {},
        "1 site": {"sites": "site\na\n"},
        "0 sites": {"sites": "site\n", "current": "subscriber,site\n"},
        "0 subscriptions": {"subscriptions": "subscriber,subscription\n"},
        "nobody": {"subscriptions": "subscriber,subscription\n", "current": "subscriber,site\n"},
        "no rate at all": {"rates": "subscription,rate\ns,0\nr,0\n"},
        "all alike": {"rates": "subscription,rate\ns,1\nr,1\n", "subscriptions": "subscriber,subscription\np,s\nq,s\n"},
        "large rates": {"rates": "subscription,rate\ns,1e300\nr,1\n"},
        "rates that overflow": {"rates": "subscription,rate\ns,1.7e308\nr,1.7e308\n"},
        "unicode": {
            "sites": "site\n京都\nÅ 🚲\n",
            "subscriptions": "subscriber,subscription\nñ,т\n",
            "rates": "subscription,rate\nт,2\n",
            "current": "subscriber,site\nñ,京都\n",
        },
    },
    "partition": {
        "as it is": {},
        "1 site": {"sites": "site,c0,height,rate_limit\na,0,1,5\n"},
        "0 sites": {"sites": "site,c0,height,rate_limit\n", "current": "topic,site\n"},
        "0 topics": {
            "topics": "topic,bound_ms,rate_out\n",
            "clients": "topic,client,role,c0,height\n",
            "current": "topic,site\n",
        },
        "0 clients": {"clients": "topic,client,role,c0,height\n"},
        "everything at one place": {
            "clients": "topic,client,role,c0,height\nt,p,pub,1,0\nt,q,sub,1,0\nu,p,both,1,0\n",
            "sites": "site,c0,height,rate_limit\na,1,0,5\nb,1,0,5\n",
        },
        "no room at all": {"sites": "site,c0,height,rate_limit\na,0,1,0\nb,9,1,0\n"},
        "large rates": {
            "topics": "topic,bound_ms,rate_out\nt,50,1e300\nu,50,1e300\n",
            "sites": "site,c0,height,rate_limit\na,0,1,1e300\nb,9,1,1e300\n",
        },
        "rates that overflow": {"topics": "topic,bound_ms,rate_out\nt,50,1.7e308\nu,50,1.7e308\n"},
        "far away": {"sites": "site,c0,height,rate_limit\na,1e300,1,5\nb,9,1,5\n"},
        "very far away": {"clients": "topic,client,role,c0,height\nt,p,pub,1e308,1\nt,q,sub,-1e308,1\n"},
        "high": {"sites": "site,c0,height,rate_limit\na,0,1e308,5\nb,9,1e308,5\n"},
        "bound of zero": {"topics": "topic,bound_ms,rate_out\nt,0,0\nu,0,0\n"},
        "unicode": {
            "topics": "topic,bound_ms,rate_out\nт,50,1\n",
            "clients": "topic,client,role,c0,height\nт,ñ,both,9,1\n",
            "sites": "site,c0,height,rate_limit\n京都,0,1,5\nÅ 🚲,9,1,5\n",
            "current": "topic,site\nт,京都\n",
        },
    },
}
BASE = {"homes": HOMES, "stores": STORES, "balance": BALANCE, "partition": PARTITION}
METHODS = {
    "homes": ("--method", ("random", "nearest", "one_topic_one_site", "reloc", "refined", "exact")),
    "stores": ("--assign", ("sequential", "wrr", "refined", "exact", "random", "greedy")),
    "balance": ("--method", ("ldm", "sdm", "gsh", "staged", "refined", "grouped", "stay")),
    "partition": ("--method", ("centroid", "allpairs", "hash", "refined", "exact")),
}
MORE = {"stores": ["--capacity", "2"]}
# What these give when all is well, whatever else is odd.
FINE = {"as it is", "1 site", "2 nodes", "all alike", "a ring", "unicode", "everything at one place"}
KEYS = {"homes": ("clients", "client"), "balance": ("current", "subscriber"), "partition": ("topics", "topic")}


@pytest.mark.parametrize(("command", "odd"), [(command, odd) for command in ODD for odd in ODD[command]])
def test_odd_tables_give_a_plan_or_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, odd: str
) -> None:
    monkeypatch.chdir(tmp_path)
    tables = {**BASE[command], **ODD[command][odd]}
    for name, text in tables.items():
        (tmp_path / f"{name}.csv").write_text(text)
    option, methods = METHODS[command]
    for method in methods:
        words = [word for name in tables for word in (f"--{name}", f"{name}.csv")]
        words += [option, method, *MORE.get(command, []), "--json", "--out", "plan.csv"]
        monkeypatch.setattr("sys.argv", ["nearcast", "plan", command, *words])
        with pytest.raises(SystemExit) as left:
            main()
        printed = capsys.readouterr()
        if left.value.code:
            assert left.value.code == 2, (method, printed.err)
            assert odd not in FINE, (method, printed.err)
            assert printed.err.count("\n") == 1, (method, printed.err)
            assert printed.err.startswith("nearcast: "), (method, printed.err)
            continue
        _finite(json.loads(printed.out), method)
        if command in KEYS:
            table, key = KEYS[command]
            assert _column(tmp_path / "plan.csv", key) == _column(tmp_path / f"{table}.csv", key), method


@pytest.mark.parametrize(
    ("command", "options", "reason"),
    [
        ("homes", "--cloud-delay-ms 1e308", "--cloud-delay-ms is 1e+308; a number from 0 to 1e+15 is needed"),
        ("homes", "--ms-per-km 1e308", "--ms-per-km is 1e+308; a number from 0 to 1e+15 is needed"),
        ("homes", "--ms-per-km -1", "--ms-per-km is -1; a number from 0 to 1e+15 is needed"),
        ("homes", "--cloud-delay-ms 1e15 --ms-per-km 1e15", None),
        ("stores", "--capacity 1e308", "--capacity is 1e+308; a number above 0 and up to 1e+15 is needed"),
        ("stores", "--capacity 1e15", None),
        ("balance", "--move-price 1e308 --alpha 1e308 --method refined", None),
    ],
)
def test_options_that_are_too_large_are_refused_before_something_overflows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    options: str,
    reason: str | None,
) -> None:
    """Warnings are errors in tests: none is given by the largest values that are taken."""
    monkeypatch.chdir(tmp_path)
    for name, text in BASE[command].items():
        (tmp_path / f"{name}.csv").write_text(text)
    words = [word for name in BASE[command] for word in (f"--{name}", f"{name}.csv")]
    monkeypatch.setattr("sys.argv", ["nearcast", "plan", command, *words, *options.split(), "--json"])
    with pytest.raises(SystemExit) as left:
        main()
    printed = capsys.readouterr()
    if reason is None:
        assert not left.value.code
        _finite(json.loads(printed.out), options)
    else:
        assert left.value.code == 2
        assert printed.err == f"nearcast: {reason}\n"


def _finite(metrics: Mapping[str, object], method: str) -> None:
    for name, value in metrics.items():
        if isinstance(value, float):
            assert math.isfinite(value), (method, name, value)
        elif isinstance(value, dict):
            _finite(value, method)


def _column(path: Path, name: str) -> list[str]:
    with path.open(newline="") as file:
        return [row[name] for row in csv.DictReader(file)]
