"""Findings of the campaign that are not mended yet. Such configurations are counted and not run, unless --open asks for
them; docs/reliability.md lists them. A finding that is mended leaves this file.
"""


def finding(case):
    """The open finding that a configuration runs into, or None."""
    if case["kind"] == "cache":
        if case["dtype"] == "bf16" and case["q_dtype"] in ("f32", "f64"):
            return "wide queries over a bf16 cache: lse off by 5e-6 of its size"
        return None
    if case["kind"] != "attention" or case["dtype"] == "f64":
        return "cosine of a zero vector and NaN" if case.get("score") == "cosine" and case.get("seen") else None
    if case.get("score") == "cosine" and (case.get("seen") or set(case["values"]) & {"denormal", "tiny"}):
        return "cosine of vectors whose squares underflow"
    if case.get("backward") and (set(case["values"]) & {"denormal", "tiny"} or case.get("sinks") == "large"):
        return "gradients near the smallest f32"
    if case.get("backward") and case.get("score") == "cosine" and "integers" in case["values"]:
        return "cosine gradients that cancel exactly"
    if (case.get("bias") or {}).get("infinite") and case.get("seen") == "v":
        return "few queries: an infinite bias does not hide a NaN in v"
    return None
