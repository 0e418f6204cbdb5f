"""Shared parts of commands: options, output, progress and plug-ins."""
