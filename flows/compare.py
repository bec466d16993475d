"""``python -m flows.compare names=a,b``: several searches side by side."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flows.cli.command import OK, Invocation, run_command
from flows.cli.output import print_message
from flows.cli.program import command
from flows.views.delivery import Delivery, deliver, make_folder, open_page, outside, write_file
from nas.core.errors import ConfigurationError, HeirloomError

if TYPE_CHECKING:
    from nas.storage.blobs import BlobStore
    from nas.views.comparison.searches import ComparedSearch
    from nas.views.comparison.tables import Comparison


def main() -> int:
    """Runs the command and returns its exit status."""
    return run_command("compare", compare)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A valid combination of the command's options.

    Attributes:
        names: The searches to compare, or None: all under the root.
        under: The root that is given instead of ``storage.root``, or None.
        delivery: The form and place of the result.
    """

    names: tuple[str, ...] | None
    under: str | None
    delivery: Delivery

    def __post_init__(self) -> None:
        if self.names is None and self.under is None:
            raise ConfigurationError(
                f"no searches: add names=A,B, or under=ROOT for all under a root; `{command('report')}` lists them"
            )
        if self.names is not None and self.under is not None:
            raise ConfigurationError(f"under={self.under}: compares all searches of the root. Leave names out")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Request:
        """Returns the request of a configuration.

        Raises:
            ConfigurationError: a value is invalid or conflicts with another.
        """
        under = None if values["under"] is None else str(values["under"])
        return cls(names=_names(values["names"]), under=under, delivery=Delivery.of(values))


def _names(value: object) -> tuple[str, ...] | None:
    """Returns the names that a list or a text gives, or None."""
    if value is None:
        return None
    names = tuple(map(str, value)) if isinstance(value, list) else tuple(filter(None, [str(value)]))
    if not names:
        raise ConfigurationError(f"names=: must list searches, as names=A,B. `{command('report')}` lists them")
    return names


def compare(invocation: Invocation) -> int:
    """Prints or writes a comparison; only reads the storage."""
    from flows.cli.settings.root import reach_stored_root
    from nas.views.comparison.tables import Comparison

    request = Request.of(invocation.values)
    values = invocation.values
    if request.under is not None:
        values = {**values, "storage": {**values["storage"], "root": request.under}}
    root = reach_stored_root(values)
    comparison = Comparison.of([*_searches(root, request)])
    _show(root, comparison, request.delivery)
    sys.stdout.flush()
    return OK


def _searches(root: BlobStore, request: Request) -> Iterator[ComparedSearch]:
    """Yields the searches of the request."""
    from flows.views.searches import find_search, none_under
    from nas.core.errors import SearchNotFoundError
    from nas.views.comparison.searches import read_compared

    now = time.time()
    if request.names is None:
        every = [*_readable(root, now)]
        if not every:
            raise SearchNotFoundError(none_under(root))
        yield from every
        return
    found = [find_search(root, name, now, print_message) for name in request.names]
    if len({files.url for files in found}) < len(found):
        raise ConfigurationError(f"names={','.join(request.names)}: must name each search once")
    yield from (read_compared(files, now) for files in found)


def _readable(root: BlobStore, now: float) -> Iterator[ComparedSearch]:
    """Yields all searches under a root, without imports of ``init.weights``.

    Unreadable ones are left out with a warning.
    """
    from nas.search.imported_weights import WeightsFileProblem
    from nas.views.comparison.searches import read_compared
    from nas.views.searches import find_searches

    imports = f"{WeightsFileProblem.__module__}.{WeightsFileProblem.__name__}"
    for search in find_searches(root, now, print_message):
        try:
            compared = read_compared(search.files, now)
        except HeirloomError as error:
            print_message(f"{search.name} is left out: {error}")
            continue
        if compared.snapshot.identity["problem"]["target"] != imports:
            yield compared


def _show(root: BlobStore, comparison: Comparison, delivery: Delivery) -> None:
    if delivery.format == "table":
        from flows.views.compared import print_comparison

        print_comparison(comparison)
    elif delivery.format == "json":
        from nas.views.comparison.tables import comparison_json

        deliver(comparison_json(comparison), root, delivery.out)
    elif delivery.format == "csv":
        from nas.views.comparison.tables import comparison_columns
        from nas.views.table import to_csv, to_table

        deliver(to_csv(to_table(comparison_columns(comparison))), root, delivery.out)
    else:
        _write_pages(root, comparison, delivery)


def _write_pages(root: BlobStore, comparison: Comparison, delivery: Delivery) -> None:
    """Writes the page, and the trees of its searches into a folder beside it."""
    from flows.cli.output import show
    from nas.views.comparison.document import comparison_page
    from nas.views.page.document import lineage_page

    path = outside(root, delivery.out or ".", "comparison.html")
    folder = path.with_name(f"{path.stem}_files")
    make_folder(folder)
    for _, search in comparison.searches:
        write_file(folder / f"{search.name}.html", lineage_page(search.snapshot))
    taken = max(search.snapshot.taken for _, search in comparison.searches)
    write_file(path, comparison_page(comparison, folder.name, taken))
    show(path)
    if delivery.opens:
        open_page(path)


if __name__ == "__main__":
    sys.exit(main())
