"""A report for people of what run.py has found."""

EXIT_NO_GPU = 3  # whatever was to be run


def test_line(test):
    failed = test.get("failed", [])
    if test["exit"] is None:
        state = "DID NOT END"
    elif failed or test["exit"] != 0:
        state = f"FAILED (exit {test['exit']}): {', '.join(failed) or 'see its output'}"
    elif test.get("ran", 0) == 0:
        state = "skipped: " + "; ".join(test.get("why_skipped", [])) if test.get("skipped") else "NO TEST RAN"
    else:
        state = f"{test['ran']} passed" + (f", {test['skipped']} skipped" if test["skipped"] else "")
    return f"{test['name']}: {state} ({test['seconds']} s)"


def failures(results):
    every = results.get("tests", []) + [test for tests in results.get("sanitizer", {}).values() for test in tests]
    return [test for test in every if test["exit"] != 0 or test.get("failed")]


def errors(results):
    """What could not be measured."""
    figures = [one for part in ("alone", "homes", "steps") for one in results.get(part, [])]
    figures += [row[way] for part in ("decode", "requests") for row in results.get(part, []) for way in ("gpu", "local", "both")]
    return [one["error"] for one in figures + results.get("models", []) if "error" in one]


def exit_code(results):
    """0: all ran and passed. 1: something failed, or no test ran."""
    none_ran = "tests" in results and not any(test.get("ran") for test in results["tests"])
    return 1 if none_ran or failures(results) or errors(results) else 0


def peer_lines(peer):
    if "none" in peer:
        return [f"None: {peer['none']}."]
    lines = [f"PyTorch {peer['torch']} on {peer['gpu']}:", "", "| what | us | GB/s | TFLOP/s |", "|---|---|---|---|"]
    for one in peer["figures"]:
        rates = [f"{one[key]:.0f}" if key in one else "" for key in ("gb_per_s", "tflop_per_s")]
        lines.append(f"| {one['what']} | {one['us']:.0f} | {rates[0]} | {rates[1]} |")
    return lines + (["", f"No more: {peer['error']}."] if "error" in peer else [])


def bench_lines(benches):
    lines = ["| command | tokens/s | step us | stage p50 us | hop p50 us | KV GB/s |", "|---|---|---|---|---|---|"]
    for one in benches:
        if "error" in one:
            lines.append(f"| `{one['command']}` | {one['error'].splitlines()[-1]} | | | | |")
            continue
        cells = [f"{one['tokens_per_s']:.1f}", f"{one['step_us']:.0f}", f"{one['stage']['p50_us']:.1f}",
                 f"{one['hop']['p50_us']:.1f}" if one["hop"]["count"] else "none", f"{one['kv_gb_per_s']:.1f}"]
        lines.append(f"| `{one['command']}` | {' | '.join(cells)} |")
    return lines


def spread(figures, form):
    if figures is None:
        return "-"
    return f"{figures['median']:{form}} [{figures['min']:{form}}..{figures['max']:{form}}]"


def way(figures):
    """p50 / p99, as far as there are samples enough."""
    return " / ".join("-" if figures[share] is None else f"{figures[share]:.1f}" for share in ("p50", "p99"))


def alone_lines(benches):
    lines = ["| command | batch | step us | its GEMMs us | step / GEMMs | S-Part alone / GEMMs | GEMMs beside waits / alone | TFLOP/s | GB/s | "
             "idle us p50 / p99 | hop us p50 / p99 | KiB there, back | there us by kernel / copy | back us by kernel / copy |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for one in benches:
        if "error" in one:
            lines.append(f"| `{one['command']}` | {one['error'].splitlines()[-1]} | | | | | | | | | | | | |")
            continue
        for batch in one["batches"]:
            cells = [str(batch["batch"]), spread(batch["step_us"], ".1f"), spread(batch["gemms_us"], ".1f"),
                     spread(batch["step_over_gemms"], ".3f"), spread(batch["near_step_over_gemms"], ".3f"),
                     spread(batch["gemms_beside_waits"], ".3f"),
                     f"{batch['gemms_tflop_per_s']:.1f}", f"{batch['gemms_gb_per_s']:.0f}",
                     way(batch["idle_us"]), way(batch["hop_us"]), f"{batch['hop_bytes'] / 1024:.1f}, {batch['reply_bytes'] / 1024:.1f}",
                     *(" / ".join(spread(batch[side][by], ".1f") for by in ("kernel", "copy")) for side in ("there_us", "back_us"))]
            lines.append(f"| `{one['command']}` | {' | '.join(cells)} |")
    return lines


def home_lines(benches):
    lines = ["| command | what | us | GEMMs alone us | KV GB/s | of copies, or GEMMs / prompt | pushed to another home us | that costs |",
             "|---|---|---|---|---|---|---|---|"]
    for one in benches:
        if "error" in one:
            lines.append(f"| `{one['command']}` | {one['error'].splitlines()[-1]} | | | | | | |")
            continue
        for row in one["attention"]:
            of_copies = "-" if row["of_copies"] is None else f"{row['of_copies']:.3f}"
            lines.append(f"| `{one['command']}` | attention, {row['batch']} x {row['context']} | {spread(row['us'], '.1f')} | | "
                         f"{row['kv_gb_per_s']:.1f} | {of_copies} | | |")
        for row in one["prompts"]:
            lines.append(f"| `{one['command']}` | a prompt of {row['tokens']} in chunks of {one['chunk']} | {spread(row['us'], '.1f')} | "
                         f"{spread(row['gemms_us'], '.1f')} | | {spread(row['gemms_over_prompt'], '.3f')} | "
                         f"{spread(row['pushed_us'], '.1f')} | {spread(row['push_cost'], '.3f')} |")
    return lines


def load_lines(rows):
    lines = ["| prompt | answer | at once | device KV GiB | GPU tokens/s | host tokens/s | both tokens/s | both / the better one |",
             "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        rates = [row[way]["error"].splitlines()[-1] if "error" in row[way] else f"{row[way]['tokens_per_s']:.1f}"
                 for way in ("gpu", "local", "both")]
        gain = row.get("both_over_better")
        lines.append(f"| {row['context']} | {row['output']} | {row['concurrency']} | {row['gpu_kv_gib']} | {' | '.join(rates)} | "
                     f"{'-' if gain is None else f'{gain:.3f}'} |")
    return lines


LINES_OF = {"alone": alone_lines, "homes": home_lines, "steps": bench_lines, "decode": load_lines, "requests": load_lines, "peer": peer_lines}
HEADINGS = {"alone": "Steps at a home that answers at once", "homes": "The GPU as a home",
            "decode": "Requests whose prompts are not computed", "requests": "Requests", "steps": "Steps", "peer": "The peer"}


def markdown(results):
    machine = results["machine"]
    lines = [f"# {machine['gpu'] or 'No GPU'}", "",
             f"FastDecode {machine['version']}, {machine['time']}; {machine['cpu']}, {machine['cores']} cores, "
             f"Linux {machine['kernel']}, {machine['libc']}; module {results['module']}, CUDA in {', '.join(results['cuda']) or 'no folder'}.",
             "", "## Tests", ""]
    lines += [f"- {test_line(test)}" for test in results["tests"]] if "tests" in results else ["- not asked for"]
    for tool, tests in results.get("sanitizer", {}).items():
        lines += [f"- {tool}: {test_line(test)}" for test in tests]
    for test in failures(results):
        lines += ["", f"### {test['name']}", "", "```", test.get("output", "").strip(), "```"]
    if "models" in results:
        lines += ["", "## Models that could not be made", ""] + [f"- `{one['command']}`: {one['error']}" for one in results["models"]]
    for part, heading in HEADINGS.items():
        if part in results:
            lines += ["", f"## {heading}", ""] + LINES_OF[part](results[part])
    return "\n".join(lines) + "\n"
