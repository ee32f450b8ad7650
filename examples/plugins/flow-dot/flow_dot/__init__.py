"""An exporter of predict jobs to Graphviz graphs."""
