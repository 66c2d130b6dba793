"""Break the engine on purpose, a line at a time, and look whether its C++ tests notice.

Each mutation is tried in a copy of the sources, in its own build folder; all must be noticed. The first build
takes minutes, a mutation as long as one file, the link and the tests.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build-mutations"
SECONDS = 120.0  # of the tests, which take 10; a mutation that makes them wait forever is noticed too
CORE, CACHE, TREE, MEMORY, SCHEDULER, SESSIONS, STEPS = (
    f"backend_cpp/engine/{file}.cc"
    for file in (
        "engine_core",
        "schedule/block_cache",
        "schedule/prefix_tree",
        "schedule/sequence_memory",
        "schedule/scheduler",
        "schedule/session_table",
        "schedule/step_loop",
    )
)
INBOX, QUEUE, GENERATION = (
    f"backend_cpp/engine/{file}.cc" for file in ("inbox", "grammar/grammar_queue", "generation/generation")
)
AUTOMATON, FRAMES = (f"backend_cpp/engine/grammar/{file}.cc" for file in ("automaton", "frames"))


@dataclass(frozen=True)
class Mutation:
    """What is changed, and what breaks by it.

    Attributes
    ----------
    breaks
        A promise of the file's.
    file
        Below the checkout.
    old, new
        Text that is in the file once, and what comes in its place.
    """

    breaks: str
    file: str
    old: str
    new: str = ""


MUTATIONS = (
    # ---- reference counting ----
    Mutation("a shared block is counted for each of its users", CACHE, "  ++at(block).references;\n"),
    Mutation(
        "a block is free when its last user has gone",
        CACHE,
        "if (--held.references > 0) return;",
        "--held.references;",
    ),
    Mutation("a twin of a published block is counted for who gets it", CACHE, "    reference(twin);\n"),
    Mutation(
        "content that nobody is to find is forgotten", CACHE, "  if (keep == Keep::kNothing) return lose(block);\n"
    ),
    Mutation(
        "a block that is written again is not found by what it held",
        CACHE,
        "    unpublish(lost[i]);\n    free_pages(lost[i]);\n",
        "    free_pages(lost[i]);\n",
    ),
    Mutation(
        "an idle block that is used again is not idle",
        CACHE,
        "    remove(block);\n    at(block).place = Place::kReferenced;\n",
        "    at(block).place = Place::kReferenced;\n",
    ),
    # ---- order of release ----
    Mutation(
        "a chain loses its end before its beginning",
        CACHE,
        "std::for_each(blocks.rbegin(), blocks.rend(), [&](int32_t block) { drop(block, keep); });",
        "std::for_each(blocks.begin(), blocks.end(), [&](int32_t block) { drop(block, keep); });",
    ),
    Mutation(
        "the least recently used block goes first",
        CACHE,
        "list(place).insert(list(place).end(), block)",
        "list(place).insert(list(place).begin(), block)",
    ),
    # ---- content ----
    Mutation("a block is found after its own prefix only", TREE, "node.parent == parent && "),
    Mutation("equal hashes do not mean equal content", TREE, "std::ranges::equal(node.tokens, content.tokens) && "),
    Mutation(
        "what comes from the host is copied",
        CACHE,
        "  move_pages(block, to);\n  free_pages(block);\n  ++swapped_in_;\n",
        "  free_pages(block);\n  ++swapped_in_;\n",
    ),
    Mutation(
        "a hit starts from a copy of what is stored",
        CACHE,
        "  move_pages(stored, block);\n",
        "  static_cast<void>(block);\n",
    ),
    Mutation(
        "what blocks share ends before an image",
        TREE,
        "if (!images.empty()) most =",
        "if (images.size() > 9) most =",
    ),
    Mutation("a block in use stays where it is", CACHE, "  if (place == Place::kReferenced) return;\n"),
    Mutation(
        "a state that rejected drafts changed is restored",
        MEMORY,
        "  set_block(cache, group, 0, std::exchange(backup_, kNoBlock));\n  cache.give_back(state, Keep::kNothing);\n",
        "  cache.give_back(backup_, Keep::kNothing);\n  (void)state;\n",
    ),
    # ---- schedule ----
    Mutation(
        "a prompt's last token is always computed",
        SCHEDULER,
        "prefix(), tokens - 1, tokens,",
        "prefix(), tokens, tokens,",
    ),
    Mutation("a preempted sequence runs no further", SCHEDULER, "return !is_last;", "return true;"),
    Mutation(
        "running sequences keep the blocks that they will need",
        SCHEDULER,
        "missing + blocks_.plan().pages_of_block() <= blocks_.available_count() - reserved",
        "missing <= blocks_.available_count()",
    ),
    Mutation(
        "who is not admitted holds nothing",
        SCHEDULER,
        "    give_up_memory(sequence, Keep::kContent);\n    return false;\n",
        "    return false;\n",
    ),
    Mutation(
        "only full blocks are published",
        MEMORY,
        "cache.block_len() <= cached_) publish_block",
        "cache.block_len() <= cached_ + 1) publish_block",
    ),
    Mutation(
        "what the window still shows is kept",
        MEMORY,
        "first_block_seen(cached_); held.first < first",
        "first_block_seen(cached_ + group.block_len); held.first < first",
    ),
    Mutation(
        "nothing is computed after a response's last token",
        SCHEDULER,
        "return sequence.in_flight == 0 || sequence.chosen() < sequence.params().max_new_tokens;",
        "return true;",
    ),
    Mutation("an ended sequence gets nothing more", SCHEDULER, "    sequence->is_open = false;\n"),
    Mutation(
        "priority comes before arrival",
        "backend_cpp/engine/schedule/sequence.h",
        "    if (group->priority != other.group->priority) return group->priority < other.group->priority;\n",
    ),
    Mutation("a token that came is not in flight", STEPS, "    if (has_chosen) --sequence.in_flight;\n"),
    Mutation(
        "no step begins before tokens that it depends on",
        STEPS,
        "step.sequences[i]->generation.needs_known_tokens()",
        "false",
    ),
    # ---- sessions ----
    Mutation(
        "a busy session takes no second request", SESSIONS, "session != nullptr && session->running != 0", "false"
    ),
    Mutation(
        "a turn that was replaced leaves its session alone",
        SESSIONS,
        " || it->second.running != request",
        " || request == 0",
    ),
    Mutation(
        "step cuts a session's history",
        SESSIONS,
        "return params.step < 0 ? have :",
        "return params.step < 1'000'000 ? have :",
    ),
    Mutation(
        "the session that was idle longest goes first",
        SESSIONS,
        "  std::sort(idle.begin(), idle.end());\n",
        "  std::sort(idle.rbegin(), idle.rend());\n",
    ),
    Mutation(
        "a request that is refused has changed nothing",
        CORE,
        "  if (request.session) turn = sessions_.prepare(",
        "  if (request.session) sessions_.erase(request.session->id);\n"
        "  if (request.session) turn = sessions_.prepare(",
    ),
    # ---- responses to one request ----
    Mutation(
        "the siblings of a response that failed end with it",
        CORE,
        "[id](const Sequence& s) { return s.group->request == id; }, FinishReason::kError, &error);\n",
        "[&](const Sequence& s) { return s.group->request == id && &s == &sequence; }, "
        "FinishReason::kError, &error);\n",
    ),
    Mutation(
        "a request ends with its last response",
        CORE,
        "    --group.open_sequences;\n",
        "    group.open_sequences = 0;\n",
    ),
    Mutation(
        "responses that have begun are waited for",
        CORE,
        "  group->open_sequences += static_cast<int>(siblings.size());\n",
    ),
    Mutation("an overdue request ends", CORE, "    if (*sequence.group->deadline <= now) return true;\n"),
    Mutation(
        "places that are kept keep their counts",
        FRAMES,
        "add({old.node, old.count, outer})",
        "add({old.node, 0, outer})",
    ),
    Mutation(
        "what a grammar forbids does not come",
        GENERATION,
        "  if (how.mask != nullptr) apply_mask(how.mask, vocab, logits);\n",
    ),
    Mutation(
        "no stop token comes before the least length",
        GENERATION,
        "position < rules_->params.min_new_tokens",
        "position + 1 < rules_->params.min_new_tokens",
    ),
    # ---- requests on their way ----
    Mutation(
        "a request that was cancelled meanwhile does not begin",
        INBOX,
        "    if (expected_.erase(compiled.request.id) == 0) return;\n",
        "    expected_.erase(compiled.request.id);\n",
    ),
    Mutation("the queue has a bound", INBOX, "queued >= max_waiting_", "queued > max_waiting_"),
    Mutation("slow compilations leave room for quick ones", QUEUE, "  if (slow_running_ >= kSlow) return false;\n"),
    Mutation("callers take turns", QUEUE, "  callers_.splice(callers_.end(), callers_, next);\n"),
    Mutation("no caller has all places of slow ones", QUEUE, "known->second < kSlow - 1", "true"),
    Mutation(
        "a count of repetitions continues", AUTOMATON, "outer.count + 1, outer.parent", "outer.count, outer.parent"
    ),
    Mutation("a count is left out only where two others allow all", FRAMES, " && most.least <= least.most + 1", ""),
)


def _prepare() -> None:
    """Copy the sources and build the tests."""
    for folder in ("backend_cpp", "CMakeLists.txt"):
        source, target = ROOT / folder, BUILD / folder
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_file():
            shutil.copy2(source, target)
            continue
        for file in source.rglob("*"):
            copy = target / file.relative_to(source)
            if file.is_dir():
                copy.mkdir(parents=True, exist_ok=True)
            elif not copy.exists() or copy.read_bytes() != file.read_bytes():  # else it would be compiled again
                shutil.copyfile(file, copy)
    tools = Path(sys.executable).parent
    options = [f"-DTURBOMIND_{part}=OFF" for part in ("PYTHON", "TRITON", "GRAMMAR")]
    command = [str(tools / "cmake"), "-S", str(BUILD), "-B", str(BUILD / "build"), "-G", "Ninja", *options]
    command += [f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", f"-DPython_EXECUTABLE={sys.executable}"]
    command += ["-DCMAKE_BUILD_TYPE=Release"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _build() -> str:
    """Build the tests; return what the compiler says where they do not build."""
    cmake = str(Path(sys.executable).parent / "cmake")
    command = [cmake, "--build", str(BUILD / "build"), "--target", "engine_tests"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout[-2000:] if done.returncode else ""


def _failed() -> list[str]:
    """Run the tests; return the names of those that fail."""
    try:
        done = subprocess.run([BUILD / "build" / "engine_tests"], capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return ["(they do not end)"]
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED")]
    return failed or ([f"(exit status {done.returncode})"] if done.returncode else [])


def _try(mutation: Mutation) -> list[str]:
    """Return the names of the tests that notice a mutation."""
    path = BUILD / mutation.file
    source = path.read_text(encoding="utf-8")
    if source.count(mutation.old) != 1:
        raise RuntimeError(f"{mutation.file} has not once: {mutation.old!r}")
    path.write_text(source.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        if said := _build():
            raise RuntimeError(f"does not build: {mutation.breaks}\n{said}")
        return _failed()
    finally:
        path.write_text(source, encoding="utf-8")


def main() -> int:
    """Try all, print a line each, and return how many nobody noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a part of what is broken")
    arguments = parser.parse_args()
    _prepare()
    if (said := _build()) or (said := " ".join(_failed())):
        print(f"without any mutation: {said}", file=sys.stderr)
        return 1
    unnoticed = 0
    for mutation in MUTATIONS:
        if arguments.only not in mutation.breaks:
            continue
        noticed = _try(mutation)
        unnoticed += not noticed
        more = f" and {len(noticed) - 3} more" if len(noticed) > 3 else ""
        print(f"{mutation.breaks}: {', '.join(noticed[:3]) + more if noticed else 'NOT NOTICED'}", flush=True)
    print(f"{unnoticed} not noticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
