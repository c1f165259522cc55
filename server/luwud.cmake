# The daemon program: main.cc, daemon.cc (composition root).
