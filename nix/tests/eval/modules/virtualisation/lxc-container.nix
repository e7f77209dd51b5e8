# What the module of NixOS by this name means to a worker.
{ boot.isContainer = true; }
