"""Money between the API's decimal strings and the contracts' integers of nano-USD. Exact: no float comes near."""

import re
from typing import Final

from sluicegate.contracts.money import NANO_USD_PER_USD

_NANO_DIGITS: Final = 9
USD_PATTERN: Final = r"^[0-9]{1,7}(\.[0-9]{1,9})?$"
_USD: Final = re.compile(r"([0-9]{1,7})(?:\.([0-9]{1,9}))?")


def nano_usd(text: str) -> int:
    """Return nano-USD of decimal USD such as `0.15`; raise ValueError for what is not exact."""
    match = _USD.fullmatch(text)
    if match is None:
        raise ValueError("must be decimal USD such as 0.15: up to 7 digits, then up to 9 behind the point")
    whole, fraction = match[1], match[2] or ""
    return int(whole) * NANO_USD_PER_USD + int(fraction.ljust(_NANO_DIGITS, "0"))


def usd(amount: int) -> str:
    """Return decimal USD of nano-USD, as short as it can be: `0.15`, `3`."""
    whole, fraction = divmod(amount, NANO_USD_PER_USD)
    digits = f"{fraction:0{_NANO_DIGITS}}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)
