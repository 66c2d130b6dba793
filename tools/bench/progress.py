"""Progress bars of the profile tools, on stderr."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm


def ignore() -> None:
    """Show no progress."""


@contextmanager
def progress_bar(
    total: int, unit: str, *, is_shown: bool | None = True, title: str | None = None
) -> Iterator[Callable[[], None]]:
    """Show a bar for as long as the block lasts; the value moves it on by one.

    Parameters
    ----------
    total, unit
        How many steps of what, such as ``request``.
    is_shown
        Whether there is a bar; None: in a terminal only.
    title
        Before the bar; None: nothing.
    """
    with tqdm(
        total=total,
        unit=unit,
        desc=title,
        disable=None if is_shown is None else not is_shown,
        leave=False,
        dynamic_ncols=True,
    ) as bar:

        def advance() -> None:
            bar.update()

        yield advance
