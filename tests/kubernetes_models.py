"""Whether what is written for a cluster has the names that the cluster's API has."""

import re
from typing import Any


def check_model(client: Any, kind: str, value: Any) -> None:
    """``value`` has keys of the client's model ``kind`` and values of their kinds, at any depth."""
    plain = {"str": str, "int": int, "bool": bool, "object": object}
    if match := re.fullmatch(r"(?:list\[|dict[\[(]str, )(.*)[\])]", kind):
        assert isinstance(value, list if kind.startswith("list") else dict), f"{kind}: {value}"
        for one in value if isinstance(value, list) else value.values():
            check_model(client, match[1], one)
    elif kind in plain:
        assert isinstance(value, plain[kind]), f"{kind}: {value}"
    else:
        model = getattr(client, kind)
        names = {key: model.openapi_types[name] for name, key in model.attribute_map.items()}
        for key, part in value.items():
            assert key in names, f"{kind} has no {key}"
            check_model(client, names[key], part)


def check_keys(value: Any, known: Any, where: str) -> None:
    if known is ...:
        return
    if isinstance(known, set):
        assert value in known, f"{where}: {value}"
        return
    for part in value if isinstance(value, list) else [value]:
        for key, inner in part.items():
            assert key in known, f"{where}: {key}"
            check_keys(inner, known[key], f"{where}.{key}")
