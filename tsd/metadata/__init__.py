"""What is kept about names and series beside their points: metadata, notes, trees, and where series are found."""
