"""kvcast fitted to one's own server: the few numbers that a benchmark's result decides, tested on its other half.

The one idea: the same requests are replayed with other values of a few scenario keys until they take as long as they
were measured to take; what the data leave open stays as it was.

    >>> print(as_toml(fit_server(prepared.resolved, [read_run(Path("R.json"))]), scenario, "kvcast fit-server R.json"))
"""

from kvcast.fitted.difference import difference
from kvcast.fitted.runs import ServerRun, read_run
from kvcast.fitted.server import Fitted, fit_server
from kvcast.fitted.watched import held
from kvcast.fitted.written import as_toml

__all__ = ["Fitted", "ServerRun", "as_toml", "difference", "fit_server", "held", "read_run"]
