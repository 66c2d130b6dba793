"""Writes what is made from the tables of fields (`lmdeploy.fields`): parts of config.pbtxt, C++ structs, documents."""
