"""The results of the GPU benchmark as text for people."""

from typing import Any

GIB = 2**30
WIDTHS = (9, 8, 9, 8, 6, 6, 6, 8)


def as_text(machine: dict[str, Any], parts: dict[str, dict[str, Any]]) -> str:
    """All parts that have run, group by group."""
    lines = heading(machine)
    for group in dict.fromkeys(part["group"] for part in parts.values()):
        members = {name: part for name, part in parts.items() if part["group"] == group}
        lines += ["", group]
        steps = {name: part for name, part in members.items() if (part["figures"] or {}).get("step_ms")}
        lines += step_table(steps) if steps else []
        for name, part in members.items():
            if name not in steps:
                lines.append(f"  {name}: {part['status']}")
                lines += plain(part["figures"] or {})
        for name, part in steps.items():
            lines += profile_lines(name, part)
    return "\n".join(lines) + "\n"


def heading(machine: dict[str, Any]) -> list[str]:
    """The GPU and the versions of packages."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    gpu = machine["gpu"]
    if gpu is None:
        return ["no GPU: a rehearsal on the CPU; its figures say nothing about a GPU", versions]
    reached = f"bfloat16 matrix product {gpu['bf16_matmul_flops'] / 1e12:,.0f} TFLOP/s"
    return [f"{gpu['name']}, {gpu['memory_bytes'] / GIB:.0f} GiB, CUDA {gpu['cuda']}, {reached}", versions]


def step_table(parts: dict[str, dict[str, Any]]) -> list[str]:
    """Speed and memory of the trainings, side by side."""
    width = max(map(len, parts))
    columns = zip(("ms/step", "busy ms", "tokens/s", "TFLOP/s", "MFU", "GiB", "waits", "kernels"), WIDTHS, strict=True)
    lines = [f"  {'':{width}} {' '.join(f'{name:>{size}}' for name, size in columns)}  first step after"]
    for name, part in parts.items():
        seen = part["figures"]
        mfu = f"{part['mfu']:.1%}" if part.get("mfu") else "-"
        memory = f"{seen['peak_bytes'] / GIB:.1f}" if "peak_bytes" in seen else "-"
        cells = [f"{seen['step_ms']:9.1f}", f"{seen.get('busy_ms', 0):8.1f}", f"{part.get('tokens_per_second', 0):9,}",
                 f"{part.get('tflops', '-'):>8}", f"{mfu:>6}", f"{memory:>6}",
                 f"{sum(seen.get('waits', {}).values()):6.0f}", f"{seen.get('launches', 0):8.0f}"]  # fmt: skip
        lines.append(f"  {name:{width}} {' '.join(cells)}  {seen['seconds_to_first_step']:.0f} s  {part['status']}")
    return lines


def profile_lines(name: str, part: dict[str, Any]) -> list[str]:
    """The longest kernels of a step, and figures of GRPO."""
    seen = part["figures"]
    lines = [f"  {name}, ms of a step, calls:"] if seen.get("top") else []
    lines += [f"    {took:8.2f} {calls:7.0f}  {kernel}" for kernel, took, calls in seen.get("top", ())]
    lines += [f"    {key}: {seen[key]}" for key in ("sampling_ms", "sampled_tokens", "waits", "copies") if key in seen]
    return lines


def plain(figures: dict[str, Any]) -> list[str]:
    """Figures by name."""
    return [f"    {name}: {value}" for name, value in figures.items()]
