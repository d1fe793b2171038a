"""`headgate completion SHELL`: what bash, zsh and fish complete, made from the parser of the command line.

The script is whole: a shell that completes starts no Python.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

SHELLS: Final = ("bash", "zsh", "fish")

ABOUT: Final = """\
  bash   headgate completion bash > ~/.local/share/bash-completion/completions/headgate
  zsh    headgate completion zsh > "${fpath[1]}/_headgate"
  fish   headgate completion fish > ~/.config/fish/completions/headgate.fish
"""


class Option(NamedTuple):
    """One option of a command: its flags, the words that it takes, whether it takes any."""

    flags: tuple[str, ...]
    about: str
    takes_value: bool
    choices: tuple[str, ...]


class Command(NamedTuple):
    """A command by the words that lead to it."""

    path: tuple[str, ...]
    about: str
    options: tuple[Option, ...]
    below: tuple[str, ...]
    # What its first argument may be, where that is one of few words.
    words: tuple[str, ...]


def completion(build: Callable[[], argparse.ArgumentParser], args: argparse.Namespace) -> int:
    """Write the script of a shell."""
    commands = list(commands_of(build(), ("headgate",), ""))
    sys.stdout.write(_FORMS[args.shell](commands))
    return 0


def commands_of(parser: argparse.ArgumentParser, path: tuple[str, ...], about: str) -> Iterator[Command]:
    """A parser's command and all below it, each once."""
    subs: dict[str, argparse.ArgumentParser] = {}
    told: dict[str, str] = {}
    options: list[Option] = []
    words: tuple[str, ...] = ()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            subs = dict(action.choices)
            told = {each.dest: each.help or "" for each in action._choices_actions}
        elif action.option_strings:
            choices = tuple(map(str, action.choices or ()))
            takes_value = action.nargs != 0
            options.append(Option(tuple(action.option_strings), _plain(action.help), takes_value, choices))
        elif action.choices and not words:
            words = tuple(map(str, action.choices))
    yield Command(path, about, tuple(options), tuple(subs), words)
    for name, sub in subs.items():
        yield from commands_of(sub, (*path, name), _plain(told.get(name)))


def _plain(text: str | None) -> str:
    return "".join(char for char in text or "" if char.isprintable() and char not in "'\"`$\\")


def bash(commands: list[Command]) -> str:
    """A function for `complete -F`."""
    paths = "|".join(f'"{" ".join(command.path)}"' for command in commands[1:])
    valued = sorted({flag for each in commands for o in each.options if o.takes_value for flag in o.flags})
    values, words = [], []
    for command in commands:
        path = " ".join(command.path)
        for option in command.options:
            if option.takes_value:
                cases = "|".join(f'"{path} {flag}"' for flag in option.flags)
                kind = f'-W "{" ".join(option.choices)}"' if option.choices else "-f"
                values.append(f'    {cases}) COMPREPLY=($(compgen {kind} -- "$cur")); return ;;')
        flags = [flag for option in command.options for flag in option.flags]
        offered = " ".join((*command.below, *command.words, *flags))
        words.append(f'    "{path}") COMPREPLY=($(compgen -W "{offered}" -- "$cur")) ;;')
    return _BASH.format(paths=paths, valued="|".join(valued), values="\n".join(values), words="\n".join(words))


def zsh(commands: list[Command]) -> str:
    """The same function, by zsh's own layer for it."""
    return f"#compdef headgate\nautoload -U +X bashcompinit && bashcompinit\n{bash(commands)}"


def fish(commands: list[Command]) -> str:
    """A line for each command and each option, with what it is about."""
    lines = ["# headgate, for fish", "complete -c headgate -f"]
    for command in commands:
        here = _fish_condition(command.path[1:], command.below)
        for name in command.below:
            about = next(each.about for each in commands if each.path == (*command.path, name))
            lines.append(f"complete -c headgate -n '{here}' -a {name} -d '{about}'")
        lines += [f"complete -c headgate -n '{here}' -a {word}" for word in command.words]
        for option in command.options:
            names = " ".join(f"-l {f[2:]}" if f.startswith("--") else f"-s {f[1:]}" for f in option.flags)
            takes = (
                f" -x -a '{' '.join(option.choices)}'"
                if option.choices
                else " -r -F"
                if option.takes_value
                else ""
            )
            lines.append(f"complete -c headgate -n '{here}' {names}{takes} -d '{option.about}'")
    return "\n".join(lines) + "\n"


def _fish_condition(path: tuple[str, ...], below: tuple[str, ...]) -> str:
    if not path:
        return "__fish_use_subcommand"
    seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in path)
    return f"{seen}; and not __fish_seen_subcommand_from {' '.join(below)}" if below else seen


_FORMS: Final[dict[str, Any]] = {"bash": bash, "zsh": zsh, "fish": fish}

_BASH: Final = """\
# headgate, for bash
_headgate() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" path="headgate" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "${{COMP_WORDS[i]}}" in
    {valued}) ((i++)); continue ;;
    esac
    case "$path ${{COMP_WORDS[i]}}" in
    {paths}) path="$path ${{COMP_WORDS[i]}}" ;;
    esac
  done
  case "$path ${{COMP_WORDS[COMP_CWORD - 1]}}" in
{values}
  esac
  case "$path" in
{words}
  esac
}}
complete -o default -F _headgate headgate
"""
