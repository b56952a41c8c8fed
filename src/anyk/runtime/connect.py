"""Workers by name: one string says which engine, and where."""

from __future__ import annotations

from typing import Any

from .processes import LocalWorkers
from .simulated import SimulatedWorkers
from .threads import ThreadWorkers
from .workers import whole

__all__ = ["connect"]

_KNOWN = "local://16, threads://16, simulated://1000, dask://tcp://host:8786, dask://, ray://auto, ray:// or mpi://"


def connect(where: str, n: int | None = None) -> Any:
    """Workers, as a context manager, from a string; what verbs do with ``workers="..."``.

    Parameters
    ----------
    where : str
        ``"local://16"``, ``"threads://16"``, ``"simulated://1000"``: so many of them.
        ``"dask://tcp://host:8786"``: the Dask cluster with that scheduler; ``"dask://"``: one that is started here.
        ``"ray://auto"``: the Ray cluster of this machine; ``"ray://host:10001"``: one elsewhere; ``"ray://"``: one that
        is started here. ``"mpi://"``: the ranks of this MPI job, on rank 0 (see `anyk.runtime.mpi`).
    n : int, optional
        How many are needed, where `where` does not say. Default: all that there are; one per core, for those that are
        started here.

    Returns
    -------
    Workers
        Whatever was started or connected for them ends with `close`.

    Raises
    ------
    ValueError
        For a string that is none of these.
    ImportError
        Naming the extra that the engine needs.
    TooFewWorkers
        If the cluster has fewer than `n`.

    Examples
    --------
    >>> import anyk
    >>> with connect("threads://4") as workers:
    ...     len(workers)
    4
    """
    scheme, separator, rest = str(where).partition("://")
    if not isinstance(where, str) or not separator:
        raise ValueError(f"workers={where!r} is no engine: use {_KNOWN}")
    counted = {"local": LocalWorkers, "threads": ThreadWorkers, "simulated": SimulatedWorkers}
    if scheme in counted:
        if rest and not rest.isdecimal():
            raise ValueError(f"workers={where!r}: after {scheme}:// comes a number of workers, as in {_KNOWN}")
        kind: Any = counted[scheme]
        return kind(int(rest) if rest else _cores(n))
    if scheme == "dask":
        from .dask import DaskWorkers

        address = rest if "://" in rest or not rest else f"tcp://{rest}"
        return DaskWorkers.connect(address or None, n if address else _cores(n))
    if scheme == "ray":
        from .ray import RayWorkers

        address = where if ":" in rest else rest
        return RayWorkers.connect(address or None, n)
    if where == "mpi://":
        from .mpi import MPIWorkers

        return MPIWorkers(n=n)
    raise ValueError(f"workers={where!r} is no engine: use {_KNOWN}")


def _cores(n: int | None) -> int:
    import os

    return whole(n) if n is not None else os.cpu_count() or 1
