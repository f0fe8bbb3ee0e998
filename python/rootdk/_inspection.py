"""What every head of a model does on a text: a table, its pictures, and a page."""

import ctypes
import json
import math
import os
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi, _models_abi, _svg
from ._models import Model, load
from ._params import whole
from ._tables import html_table, layer_maps, text_table
from ._token_ids import Prompt


class LabelScore(NamedTuple):
    """One question asked of a head: how much weight do the keys get that a label is about?"""

    label: str
    score: float  # mean over rows; "broad": effective over visible keys; NaN where no row raises the question
    chance: float  # what uniform attention over the same mask would score
    rows: int  # that raise the question
    tokens: int  # different query tokens among them: rows of one token count as one observation
    p_value: float  # of a score so large without a preference for those keys: an upper bound
    significant: bool  # after correction for all heads of the model and all labels


class HeadProfile(NamedTuple):
    """One head of one layer; docs/lab.md says where each number comes from. NaN where a number is not defined."""

    stack: str  # "self"; of an encoder-decoder model also "encoder" and "cross"
    layer: int
    head: int
    label: str  # what it mostly does; Inspection.rules says what that means
    strength: float  # the score of the label; 0 where the head is "mixed"
    chance: float  # what uniform attention over the same mask would score
    label_rows: int  # that the score rests on
    p_value: float  # of the score, before correction for all heads; Inspection.scores has those of every label
    entropy: float  # nats
    effective_keys: float
    max_logit: float
    saturation: float  # the share of rows with a weight over 0.9
    gradient_left: float  # 1 - sum p^2
    sink_mass: float  # weight on the first key
    sink_chance: float  # what uniform attention would put there
    mean_distance: float  # in tokens
    previous: float  # weight on the token before
    first: float  # weight on the first token
    same: float  # weight on equal tokens
    induction: float  # weight on tokens that followed an earlier occurrence of the row's token, neither the token just
    # before nor an equal one
    near: float  # weight at most 8 tokens away
    used: float  # effective keys over visible keys
    rows: int
    sampled_rows: int  # those whose exact weights were read

    @property
    def name(self) -> str:
        """As in the reports: "2.0", or "cross 2.0"."""
        return ("" if self.stack == "self" else self.stack + " ") + f"{self.layer}.{self.head}"


_COLUMNS = (
    ("label", ""),
    ("head", ""),
    ("score", ".2f"),
    ("chance", ".2f"),
    ("entropy", ".2f"),
    ("effective keys", ".1f"),
    ("max logit", ".2f"),
    ("saturated", ".2f"),
    ("gradient left", ".3f"),
    ("sink", ".2f"),
    ("uniform", ".2f"),
    ("distance", ".1f"),
)
_PICTURED = ("effective_keys", "saturation", "sink_mass", "mean_distance")


class Inspection:
    """What the heads of a model did on one text: `heads` is a list of HeadProfile, grouped by label, the clearest of each
    group first. Printing it shows the table; a notebook shows the picture, too."""

    heads: List[HeadProfile]

    def __init__(self, functions: _models_abi.Functions, handle: Any) -> None:
        self._functions, self._handle = functions, _abi.own(handle, functions.inspection_destroy)
        self._json: Dict[str, Any] = json.loads(functions.text(functions.inspection_json, handle))
        self.model: str = self._json["model"]
        self.architecture: str = self._json["architecture"]
        self.parameters: int = self._json["parameters"]
        self.token_count: int = self._json["token_count"]
        self.tokens: Optional[List[str]] = self._json.get("tokens")  # None for texts of over 1024 tokens
        self.rules: Dict[str, str] = self._json["rules"]  # what each label means
        self.trained_context: int = self._json["trained_context"]  # 0: the config does not say
        self.warnings: List[str] = self._json["warnings"]  # what keeps the numbers from meaning what they seem to
        self.heads = [
            HeadProfile._make(math.nan if head[name] is None else head[name] for name in HeadProfile._fields)
            for head in self._json["heads"]
        ]

    def to_dict(self) -> Dict[str, Any]:
        """Everything as plain lists and numbers, None where a number is not defined: what `rootdk inspect --json`
        prints, with each key's mass for texts of up to 1024 tokens."""
        return json.loads(json.dumps(self._json))  # type: ignore[no-any-return]

    def rows(self) -> List[Dict[str, Any]]:
        """One dict a head, as pandas.DataFrame and csv.DictWriter take them."""
        return [head._asdict() for head in self.heads]

    def __iter__(self) -> Iterator[HeadProfile]:
        return iter(self.heads)

    def __len__(self) -> int:
        return len(self.heads)

    def find(self, layer: int, head: int, stack: str = "self") -> HeadProfile:
        return self.heads[self._place(layer, head, stack)]

    def scores(self, layer: int, head: int, stack: str = "self") -> List[LabelScore]:
        """What every label scores for a head, whether it is given or not."""
        scores = self._json["heads"][self._place(layer, head, stack)]["scores"]
        return [
            LabelScore._make(math.nan if score[name] is None else score[name] for name in LabelScore._fields)
            for score in scores
        ]

    def map(self, layer: int, head: int, stack: str = "self") -> List[List[float]]:
        """The weights of a head, one row a query; of a text longer than map_size pooled into that many cells each
        way."""
        return self._map(self._place(layer, head, stack))

    def table(self, field: str, stack: str = "self") -> List[List[float]]:
        """One field by layer and head: table("entropy")[layer][head], of the layers and heads that were asked for."""
        if field not in HeadProfile._fields:
            raise ValueError(f"inspect: there is no field {field!r}; there are {', '.join(HeadProfile._fields)}")
        chosen = sorted((head for head in self.heads if head.stack == stack), key=lambda x: (x.layer, x.head))
        layers: Dict[int, List[float]] = {}
        for profile in chosen:
            layers.setdefault(profile.layer, []).append(getattr(profile, field))
        return list(layers.values())

    def _place(self, layer: int, head: int, stack: str) -> int:
        for i, profile in enumerate(self.heads):
            if (profile.stack, profile.layer, profile.head) == (stack, layer, head):
                return i
        raise ValueError(f"inspect: there is no head {head} of layer {layer} in the stack {stack!r}")

    def _map(self, place: int) -> List[List[float]]:
        values, rows, columns = ctypes.POINTER(ctypes.c_float)(), ctypes.c_int64(), ctypes.c_int64()
        _abi.check(
            self._functions.inspection_map(
                self._handle, place, ctypes.byref(values), ctypes.byref(rows), ctypes.byref(columns)
            )
        )
        return [values[i * columns.value : (i + 1) * columns.value] for i in range(rows.value)]

    def _lines(self) -> List[Sequence[Any]]:
        return [
            (
                head.label,
                head.name,
                math.nan if math.isnan(head.chance) else head.strength,
                head.chance,
                head.entropy,
                head.effective_keys,
                head.max_logit,
                head.saturation,
                head.gradient_left,
                head.sink_mass,
                head.sink_chance,
                head.mean_distance,
            )
            for head in self.heads
        ]

    def _warning_lines(self) -> List[str]:
        return [f"warning: {warning}" for warning in self.warnings]

    def _title(self) -> str:
        tokens = "1 token" if self.token_count == 1 else f"{self.token_count} tokens"
        return f"{self.model}: {self.architecture}, {tokens}, {len(self.heads)} heads"

    def __repr__(self) -> str:
        return "\n".join([self._title(), *self._warning_lines(), *text_table(_COLUMNS, self._lines())])

    def plot(self, path: Union[None, str, Path] = None, *, maps: bool = False) -> "_svg.Svg":
        """A picture as SVG text, which a notebook shows, written to `path` where one is given: by layer and head the
        effective keys, saturation, sink mass and distance; or with maps=True the weights of every head."""
        if path is not None and Path(path).suffix != ".svg":
            raise ValueError(f"plot: the picture is SVG, and {path} does not end in .svg")
        if maps:
            pictures = [_svg.heat_map(self._map(i)) for i in range(len(self.heads))]
            labels = [f"{head.name} {head.label}" for head in self.heads]
            picture = _svg.panels(self._title(), pictures, labels, "rows: queries, columns: keys; darker: more weight")
        else:
            stack = self.heads[0].stack if all(head.stack != "self" for head in self.heads) else "self"
            picture = layer_maps(self._title(), {name.replace("_", " "): self.table(name, stack) for name in _PICTURED})
        return picture if path is None else picture.save(path)

    def save(self, path: Union[str, Path]) -> None:
        """Writes one self-contained HTML page with every head's numbers and map."""
        html = self._functions.text(self._functions.inspection_page, self._handle)
        Path(path).write_text(html, encoding="utf-8")

    def _repr_svg_(self) -> str:
        return str(self.plot())

    def _repr_html_(self) -> str:
        warnings = "".join(f"<p>{line}</p>" for line in self._warning_lines())
        return f"<div>{warnings}{self.plot()}{html_table(_COLUMNS, self._lines())}</div>"


def inspect(
    model: Union[Model, str, "os.PathLike[str]"],
    text: Prompt,
    *,
    layers: Optional[Iterable[int]] = None,
    heads: Optional[Iterable[int]] = None,
    map_size: int = 64,
    threads: Optional[int] = None,
) -> Inspection:
    """What every head of a model does on a text: entropy, effective keys, largest logit, saturation, sink mass,
    distance, and a label with its rule. `model` is what load() gives or takes, `text` a text or token ids;
    layers and heads choose some. Memory grows with the length of the text, not with its square.

        >>> inspection = rootdk.inspect("builtin", "To be, or not to be")
        >>> inspection.find(layer=0, head=1).label
    """
    model = model if isinstance(model, Model) else load(model)
    functions, ids = model._functions, model.ids_of(text)
    params = _models_abi.InspectParams()
    functions.inspect_params_init(ctypes.byref(params))
    params.layers, params.layer_count = _numbers(layers, "layers")
    params.heads, params.head_count = _numbers(heads, "heads")
    params.map_side, params.threads = map_size, threads or 0
    handle = ctypes.c_void_p()
    _abi.check(
        functions.model_inspect(
            model._handle, _models_abi.c_ids(ids), len(ids), ctypes.byref(params), ctypes.byref(handle)
        )
    )
    return Inspection(functions, handle)


def _numbers(chosen: Optional[Iterable[int]], name: str) -> Tuple[Any, int]:
    """(an array of the library, its length); None takes all."""
    if chosen is None:
        return None, 0
    if not isinstance(chosen, Iterable):
        raise TypeError(f"inspect: {name} is {chosen!r}, expected a list")
    numbers = [whole(number, name) for number in chosen]
    if not numbers:  # to the library this would mean all
        raise ValueError(f"inspect: {name} is empty; None takes all")
    return (ctypes.c_int64 * len(numbers))(*numbers), len(numbers)
