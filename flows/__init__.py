import sys

if sys.argv[:1] == ["-m"] and any(word.startswith(("flows.", "-mflows.")) for word in sys.orig_argv):
    # `python -m flows.search` imports this package first, with the working folder in front of all others
    from flows.cli.import_path import order_import_path

    order_import_path()
