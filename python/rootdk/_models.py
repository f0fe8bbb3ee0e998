"""Models from checkpoint folders: tokens, logits, and text."""

import ctypes
import os
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Union, overload

from . import _abi, _models_abi, _structs
from ._arrays import kind_of, takes_any_array
from ._attention import call_with_tensors
from ._buffer import Buffer
from ._generation import (
    Beam,
    Generation,
    SamplingOptions,
    TokenStream,
    cache_type_code,
    generate_params,
    one_of,
    spells_out_sampling,
)
from ._models_abi import c_ids
from ._params import whole
from ._token_ids import Prompt, id_array, id_list
from ._typing import ArrayT, Integers, NumpyArray

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Model:
    """A model from a folder in the transformers layout, on the CPU. rootdk.load makes one.

    architecture, parameters, layers, heads, kv_heads, d_model, vocab_size and max_position (0: no limit) say what it is;
    gives_logits is False for models that end in hidden states (BERT)."""

    def __init__(
        self,
        folder: Union[str, "os.PathLike[str]"],
        weights: Optional[str] = None,
        activations: str = "f32",
        threads: Optional[int] = None,
    ) -> None:
        self.name = os.fspath(folder)
        self._functions = _models_abi.functions()
        params = _models_abi.LoadParams()
        self._functions.load_params_init(ctypes.byref(params))
        params.weights = one_of(weights, "weights", {None: 0, "int8": 1, "int4": 2})
        params.activations = one_of(activations, "activations", {"f32": _structs.F32, "bf16": _structs.BF16})
        params.threads = threads or 0
        handle = ctypes.c_void_p()
        _abi.check(self._functions.model_load_with(os.fsencode(folder), ctypes.byref(params), ctypes.byref(handle)))
        self._handle = _abi.own(handle, self._functions.model_destroy)
        info = _models_abi.ModelInfo()
        self._functions.model_info_init(ctypes.byref(info))
        _abi.check(self._functions.model_describe(handle, ctypes.byref(info)))
        self.architecture: str = info.architecture.decode()
        self.parameters: int = info.parameters
        self.layers: int = info.layers
        self.heads: int = info.heads
        self.kv_heads: int = info.kv_heads
        self.d_model: int = info.d_model
        self.vocab_size: int = info.vocab_size
        self.max_position: int = info.max_position
        self.gives_logits, self.has_encoder = bool(info.gives_logits), bool(info.has_encoder)
        self.has_tokenizer = bool(info.has_tokenizer)
        self._output_width: int = info.output_width

    def __repr__(self) -> str:
        return (
            f"rootdk.Model({self.name!r}: {self.architecture}, {self.parameters} parameters, {self.layers} layers of "
            f"{self.heads} heads)"
        )

    def encode(self, text: str, *, special: bool = True) -> List[int]:
        """The ids of a text, with what the tokenizer puts around it unless special is False."""
        if not isinstance(text, str):
            raise TypeError(f"rootdk: text is a {type(text).__name__}, expected a str")
        data = text.encode()
        ids, count = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
        _abi.check(
            self._functions.model_encode(
                self._handle, data, len(data), int(special), ctypes.byref(ids), ctypes.byref(count)
            )
        )
        return ids[: count.value]

    def decode(self, ids: Integers, *, special: bool = False) -> str:
        """The text of ids, without special tokens unless asked for."""
        ids = id_list(ids)
        return self._functions.text(self._functions.model_decode, self._handle, c_ids(ids), len(ids), int(special))

    def ids_of(self, prompt: Prompt) -> List[int]:
        """The ids of a text, or the ids themselves."""
        return self.encode(prompt) if isinstance(prompt, str) else id_list(prompt)

    @overload
    def forward(
        self,
        ids: Union[str, List[int], Sequence[Sequence[int]]],
        *,
        mask: Optional[Integers] = None,
        token_types: Optional[Integers] = None,
        decoder_ids: Optional[Integers] = None,
        threads: Optional[int] = None,
    ) -> NumpyArray: ...

    @overload
    def forward(
        self,
        ids: ArrayT,
        *,
        mask: Optional[Integers] = None,
        token_types: Optional[Integers] = None,
        decoder_ids: Optional[Integers] = None,
        threads: Optional[int] = None,
    ) -> ArrayT: ...

    def forward(
        self,
        ids: Any,
        *,
        mask: Any = None,
        token_types: Any = None,
        decoder_ids: Any = None,
        threads: Optional[int] = None,
    ) -> Any:
        """The logits of each next token [batch, len, vocab], or hidden states [batch, len, d_model], as f32.

        ids is a text, a list, or an array [len] or [batch, len]; without the batch, so is the result. mask has 1 for
        tokens and 0 for padding. decoder_ids are needed by encoder-decoder models, whose output is theirs. The result
        is an array of the kind that ids is; from a text or a list a NumPy array, where there is NumPy."""
        given = self.ids_of(ids) if isinstance(ids, str) else ids
        inputs = {"mask": mask, "token_types": token_types, "decoder_ids": decoder_ids}
        arrays = {name: None if x is None else id_array(x) for name, x in inputs.items()}
        return _forward(id_array(given), self, int(threads or 0), **arrays)

    def generate(self, prompt: Prompt, max_new: int = 64, **options: Any) -> Generation:
        """Continues a text, or token ids, by up to max_new tokens. The options are those of `stream`."""
        ids = self.ids_of(prompt)
        tokens = list(self.stream(ids, max_new, **options))
        new = [token.id for token in tokens]
        text = "".join(token.text for token in tokens) if options.get("stop") else self._text(ids, new)
        return Generation(text, new, ids, prompt if isinstance(prompt, str) and not self.has_encoder else "")

    @spells_out_sampling
    def stream(
        self,
        prompt: Prompt,
        max_new: int = 64,
        *,
        stop: Union[str, Sequence[str]] = (),
        stop_at_end: bool = True,
        cache: bool = True,
        cache_type: Optional[str] = None,
        draft: Optional["Model"] = None,
        draft_tokens: int = 4,
        threads: Optional[int] = None,
        **sampling: "Unpack[SamplingOptions]",
    ) -> TokenStream:
        """The tokens that `generate` adds, one by one as they come, each with its id and its text.

        greedy              always the likeliest token: the default unless one of the next four is given
        temperature         draws from the softmax of the logits over this
        top_k, top_p        draws from the k likeliest; from the likeliest that together reach p
        min_p               draws from tokens at least p times as likely as the likeliest
        repetition_penalty  above 1: tokens that are in the text become less likely
        seed                the same seed draws the same tokens
        stop                the text ends before the first of these strings
        stop_at_end         ends at the model's end token
        cache               False computes the whole sequence anew for each token, to the same result
        cache_type          of the keys and values that are kept: f32, bf16, f16, int8, e4m3; default: the checkpoint's
        draft               a small model of the same vocabulary that proposes draft_tokens at once; the tokens are the
                            same as without it"""
        params = generate_params(self._functions, max_new, sampling)
        params.stop_at_end, params.cache, params.threads = stop_at_end, cache, threads or 0
        params.cache_type = cache_type_code(cache_type)
        if draft is not None:
            if not isinstance(draft, Model):
                raise TypeError(f"rootdk: draft is a {type(draft).__name__}, expected a rootdk.Model")
            params.draft, params.draft_tokens = draft._handle, whole(draft_tokens, "draft_tokens")
        strings = [x.encode() for x in ([stop] if isinstance(stop, str) else stop)]
        params.stop, params.stop_count = (ctypes.c_char_p * max(1, len(strings)))(*strings), len(strings)
        return TokenStream(self, self.ids_of(prompt), params, draft._handle if draft is not None else None)

    @spells_out_sampling
    def generate_many(
        self,
        prompts: Sequence[Prompt],
        max_new: int = 64,
        *,
        batch: int = 32,
        stop_at_end: bool = True,
        cache_type: Optional[str] = None,
        threads: Optional[int] = None,
        **sampling: "Unpack[SamplingOptions]",
    ) -> List[Generation]:
        """Continues many prompts, `batch` of them at the same time. Each gives the tokens that it gives alone; the
        options are those of `stream`."""
        params = generate_params(self._functions, max_new, sampling)
        params.stop_at_end = stop_at_end
        handle, functions = ctypes.c_void_p(), self._functions
        _abi.check(
            functions.batch_create(
                self._handle, whole(batch, "batch"), cache_type_code(cache_type), threads or 0, ctypes.byref(handle)
            )
        )
        handle = _abi.own(handle, functions.batch_destroy, self._handle)
        ids = [self.ids_of(prompt) for prompt in prompts]
        new: Dict[int, List[int]] = {}
        numbers = []
        for each in ids:
            number = ctypes.c_size_t()
            _abi.check(functions.batch_add(handle, c_ids(each), len(each), ctypes.byref(params), ctypes.byref(number)))
            numbers.append(number.value)
            new[number.value] = []
        tokens, count = ctypes.POINTER(_models_abi.BatchToken)(), ctypes.c_size_t(1)
        while count.value:
            _abi.check(functions.batch_step(handle, ctypes.byref(tokens), ctypes.byref(count)))
            for i in range(count.value):
                new[tokens[i].request].append(tokens[i].id)
        texts = [prompt if isinstance(prompt, str) and not self.has_encoder else "" for prompt in prompts]
        return [
            Generation(self._text(each, new[number]), new[number], each, text)
            for number, each, text in zip(numbers, ids, texts)
        ]

    def beams(
        self,
        prompt: Prompt,
        max_new: int = 64,
        *,
        beams: int = 4,
        length_penalty: float = 1.0,
        stop_at_end: bool = True,
        cache_type: Optional[str] = None,
        threads: Optional[int] = None,
    ) -> List[Beam]:
        """Beam search: the likeliest continuations, at most `beams` of them, the best first."""
        params = _models_abi.BeamParams()
        self._functions.beam_params_init(ctypes.byref(params))
        params.beams, params.max_new = whole(beams, "beams"), whole(max_new, "max_new")
        params.length_penalty, params.stop_at_end = length_penalty, stop_at_end
        params.cache_type, params.threads = cache_type_code(cache_type), threads or 0
        ids, handle, found = self.ids_of(prompt), ctypes.c_void_p(), ctypes.c_size_t()
        _abi.check(
            self._functions.beam_search(
                self._handle, c_ids(ids), len(ids), ctypes.byref(params), ctypes.byref(handle), ctypes.byref(found)
            )
        )
        handle = _abi.own(handle, self._functions.beams_destroy)
        results = []
        for i in range(found.value):
            new, count = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
            total, score = ctypes.c_double(), ctypes.c_double()
            places = (ctypes.byref(x) for x in (new, count, total, score))
            _abi.check(self._functions.beams_get(handle, i, *places))
            fresh = new[: count.value]
            results.append(Beam(self._text(ids, fresh), fresh, total.value, score.value))
        return results

    def embed(
        self,
        texts: Union[str, Sequence[str]],
        *,
        pooling: Optional[str] = None,
        normalise: bool = True,
        threads: Optional[int] = None,
    ) -> NumpyArray:
        """Vectors of texts [texts, d_model], or of one text [d_model], from an encoder: the mean of its hidden states, or
        the first token's. pooling is "mean", "cls", or by default what the folder's 1_Pooling/config.json says. The
        result is a NumPy array, where there is NumPy."""
        one = isinstance(texts, str)
        data = [text.encode() for text in ([texts] if isinstance(texts, str) else texts)]
        out = Buffer.empty((len(data), self.d_model), _structs.F32)
        sizes = (ctypes.c_size_t * len(data))(*map(len, data))
        how = one_of(pooling, "pooling", {None: -1, "mean": 0, "cls": 1})

        def call(address: int) -> int:
            strings = (ctypes.c_char_p * len(data))(*data)
            settings = (how, int(normalise), address, None, threads or 0)
            return self._functions.model_embed(self._handle, strings, sizes, len(data), *settings)

        call_with_tensors(kind_of(out, "out"), call, out=out)
        result: Any = out.without_batch() if one else out
        try:
            import numpy
        except ImportError:
            return result
        return numpy.array(result.memoryview())

    def _text(self, prompt: List[int], new: List[int]) -> str:
        """The text of new tokens. It depends on what stands before them: a word behind others begins with a space."""
        if not self.has_tokenizer:
            return ""
        before = [] if self.has_encoder else prompt[-8:]
        head, text = self.decode(before), self.decode([*before, *new])
        return text[len(head) :] if text.startswith(head) else self.decode(new)


def load(
    folder: Union[str, "os.PathLike[str]"],
    *,
    weights: Optional[str] = None,
    activations: str = "f32",
    threads: Optional[int] = None,
) -> Model:
    """A model from a folder with config.json, model.safetensors (or its shards) and, for text, tokenizer.json: GPT-2,
    BERT, LLaMA, Mistral, GPT-NeoX, BLOOM, T5, Marian, Gemma 2, Qwen 3, gpt-oss, or one of `rootdk train`. "builtin" is the
    small model that comes with the package.

        >>> model = rootdk.load("builtin")
        >>> print(model.generate("ROMEO:", max_new=40, temperature=0.8, seed=1))

    weights             "int8" or "int4" makes the matrices smaller as they are loaded; else they are used as they are
    activations         "bf16" rounds what bf16 matrices multiply, which is faster for many tokens at once
    threads             of the loading
    """
    return Model(folder, weights, activations, threads)


@takes_any_array
def _forward(ids: Any, model: Model, threads: int, **inputs: Any) -> Any:
    kind = kind_of(ids, "ids")
    read = ids if inputs["decoder_ids"] is None else inputs["decoder_ids"]
    batched = len(read.shape) == 2
    shape = tuple(read.shape) if batched else (1, *read.shape)
    out = kind.empty((*shape, model._output_width), _structs.F32, ids)
    call_with_tensors(
        kind,
        lambda *at: model._functions.model_forward(model._handle, *at, threads),
        ranks=dict.fromkeys(("ids", *inputs), 2),
        ids=ids,
        **inputs,
        out=out,
    )
    if batched:
        return out
    return out.without_batch() if isinstance(out, Buffer) else out[0]
