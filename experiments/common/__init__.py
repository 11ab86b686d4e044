"""What experiments share: cells that are resumed, rows beside the paper's numbers, tables, and the run itself."""
